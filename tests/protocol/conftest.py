"""What the tests of the wire share: one real end, with the other end played by hand, frame by frame."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from cartdeck_protocol import wire

HELLO = {"protocol": 1, "api": 1, "limits": {}, "features": ["credit"], "software": "played"}


def raw(fields: dict[Any, Any] | bytes) -> bytes:
    """A frame of any map at all, its kind first; bytes are a body as it is."""
    if isinstance(fields, dict):
        fields = msgpack.packb({1: fields[1], **fields} if 1 in fields else fields)
    body = fields
    return len(body).to_bytes(4, "big") + body


def frames_of(data: bytes) -> list[dict[int, Any]]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(msgpack.unpackb(data[4 : 4 + size], strict_map_key=False))
        data = data[4 + size :]
    return found


class Played:
    """`end` is a real connection, greeted unless told otherwise. `hear` gives it frames; `said` is what it answers."""

    def __init__(self, role: wire.Role = wire.Role.HOST, *, greet: bool = True, **limits: int) -> None:
        self.end = wire.Connection(role, limits=wire.Limits(**limits), manifest=b"{}")
        self.heard_frames = 0
        self.heard_bytes = 0
        self._their_last = -1 if role is wire.Role.HOST else 0
        if role is wire.Role.HOST:
            self.end.send_hello()
        if greet:
            [hello] = self.hear({1: 0, 2: 0, 5: {**HELLO, "limits": limits}})
            assert isinstance(hello, wire.HelloReceived)
            self.said()

    def hear(self, *frames: dict[Any, Any] | bytes) -> list[Any]:
        """Frames of the other end, in one read; bytes are taken as a whole frame."""
        parts = [frame if isinstance(frame, bytes) else raw(frame) for frame in frames]
        self.heard_frames += len(parts)
        self.heard_bytes += sum(map(len, parts))
        return self.end.receive(b"".join(parts))

    def said(self) -> list[dict[int, Any]]:
        return frames_of(b"".join(self.end.outgoing()))

    def their_id(self) -> int:
        """The next id of a request of the played end."""
        self._their_last += 2
        return self._their_last

    def opened(self, *, asks: bool, complete: bool = False) -> wire.Exchange:
        """A request between the two: of the real end when it `asks`, else of the played one."""
        if asks:
            exchange = self.end.request("cap:x", complete=complete)
            self.said()
            return exchange
        [event] = self.hear({1: 1, 2: self.their_id(), 10: "cap:x", 5: {"complete": complete}})
        return event.exchange

    def is_well(self) -> bool:
        """Whether a new request still works, both ways."""
        exchange = self.opened(asks=False, complete=True)
        own = self.opened(asks=True)
        [event] = self.hear({1: 4, 2: own.id})
        return exchange.is_open and isinstance(event, wire.Finished) and self.end.error is None


@pytest.fixture(scope="session")
def play() -> Callable[..., Played]:
    return Played


@pytest.fixture(scope="session")
def frame() -> Callable[..., bytes]:
    return raw


@pytest.fixture(scope="session")
def frames_in() -> Callable[[bytes], list[dict[int, Any]]]:
    return frames_of
