"""Owns a second look at the received bytes, frame by frame: what the wire's library accepts, counts or forgets.

It does not judge. What the library refuses ends the tap: the library says why.
"""

from dataclasses import dataclass
from typing import Any, Final

from cartdeck_protocol.wire import Kind, RemoteProtocolError
from cartdeck_protocol.wire.frames import LENGTH, decode

_MOST_BODY: Final = 16 * 1024 * 1024


@dataclass(slots=True, frozen=True)
class Frame:
    """One frame. `fields` are by the number of their key; a CHUNK's payload is left out."""

    kind: int
    request_id: int
    fields: dict[int, Any]

    @property
    def meta(self) -> dict[str, Any]:
        return self.fields.get(5) or {}


class Tap:
    """Bytes in, frames out. `is_closed` once the bytes are no frames."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._count = 0
        self.is_closed = False

    @property
    def rest(self) -> bytes:
        """What stands behind the last whole frame."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[Frame]:
        found: list[Frame] = []
        if self.is_closed:
            return found
        self._pending += data
        start = 0
        while len(self._pending) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._pending, start)
            end = start + LENGTH.size + length
            if length > _MOST_BODY:
                self.is_closed = True
                break
            if end > len(self._pending):
                break
            try:
                fields = decode(
                    memoryview(bytes(self._pending[start + LENGTH.size : end])), frame=self._count, offset=0
                )
            except RemoteProtocolError:
                self.is_closed = True
                break
            self._count += 1
            start = end
            if fields[1] == Kind.CHUNK:
                fields.pop(6)
            found.append(Frame(fields[1], fields[2], fields))
        del self._pending[:start]
        return found
