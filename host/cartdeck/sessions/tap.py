"""Owns the second reader of a session's frame pipes, where a trace is asked for.

It does not know what frames do: it splits the same bytes once more, tells the trace, and hands everything on.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck.peers.envelope import is_secret_name
from cartdeck.sessions.trace import Trace
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import Buffer, Connection, Event, Kind

_LENGTH_BYTES: Final = 4
_MOST_BODY_BYTES: Final = 16 * 1024 * 1024
"""Twice of what any two ends can agree on: past it the bytes are no frames."""
_MOST_HIDDEN: Final = 4096
_RECORD_BYTES: Final = 512


class Tap:
    """A connection as a channel sees it, with both directions told to the trace."""

    def __init__(self, connection: Connection, trace: Trace, *, session: str, pid: int) -> None:
        self._connection = connection
        tell = _Teller(trace, {"session": session, "pid": pid})
        self._in = _Direction(tell, "in")
        self._out = _Direction(tell, "out")
        self._space = memoryview(b"")

    @property
    def error(self) -> CartdeckError | None:
        return self._connection.error

    @property
    def has_outgoing(self) -> bool:
        return self._connection.has_outgoing

    def buffer(self) -> memoryview:
        self._space = self._connection.buffer()
        return self._space

    def received(self, size: int) -> list[Event]:
        self._in.feed(self._space[:size])
        return self._connection.received(size)

    def outgoing(self, room: int = 1 << 62) -> list[Buffer]:
        buffers = self._connection.outgoing(room)
        for buffer in buffers:
            self._out.feed(buffer)
        return buffers


class _Teller:
    """Makes the records of one session."""

    def __init__(self, trace: Trace, whose: dict[str, Any]) -> None:
        self._trace = trace
        self._whose = whose
        self._hidden: set[tuple[Any, Any]] = set()
        """Argument streams, by request and number, whose names say that they carry secrets."""

    def frame(self, direction: str, body: bytes) -> None:
        size_bytes = _LENGTH_BYTES + len(body)
        try:
            fields: Any = _unpack(body, strict_map_key=False, unicode_errors="replace")
            is_hidden = self._is_hidden(fields)
            record = self._trace.envelope.record(fields, is_hidden=is_hidden)
        except Exception as error:  # foreign bytes: whatever is wrong with them is for the connection to judge
            record = {"damaged": f"no frame: {type(error).__name__}"}
        weight = _RECORD_BYTES + (len(body) if self._trace.envelope.with_payloads else 0)
        self._trace.add({**self._whose, "direction": direction, **record, "size_bytes": size_bytes}, weight)

    def _is_hidden(self, fields: dict[Any, Any]) -> bool:
        stream = (fields.get(2), fields.get(11))
        if fields[1] == Kind.STREAM_START and is_secret_name(str(fields.get(21, ""))):
            if len(self._hidden) >= _MOST_HIDDEN:
                self._hidden.clear()
            self._hidden.add(stream)
        return stream in self._hidden

    def damage(self, direction: str, message: str) -> None:
        self._trace.add({**self._whose, "direction": direction, "damaged": message}, _RECORD_BYTES)


class _Direction:
    """The bytes of one direction, cut into frames. After bytes that are no frames it says so, once, and rests."""

    def __init__(self, tell: _Teller, name: str) -> None:
        self._tell = tell
        self._name = name
        self._unread = bytearray()
        self._is_lost = False

    def feed(self, data: Buffer) -> None:
        if self._is_lost:
            return
        self._unread += data
        for body in self._bodies():
            self._tell.frame(self._name, body)

    def _bodies(self) -> Iterator[bytes]:
        unread, start = self._unread, 0
        while len(unread) - start >= _LENGTH_BYTES:
            length = int.from_bytes(unread[start : start + _LENGTH_BYTES], "big")
            if length > _MOST_BODY_BYTES:
                self._is_lost = True
                self._tell.damage(self._name, f"a frame of {length} bytes: what follows is not read as frames")
                unread.clear()
                return
            end = start + _LENGTH_BYTES + length
            if len(unread) < end:
                break
            yield bytes(unread[start + _LENGTH_BYTES : end])
            start = end
        del unread[:start]


_unpack: Callable[..., Any] = cast("Any", msgpack).unpackb
