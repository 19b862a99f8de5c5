"""Owns the receive buffer: bytes from the pipe in, whole frame bodies out.

It does not know what a frame means; it checks lengths before anything is decoded or allocated for a body.
"""

from collections.abc import Callable
from typing import Final

from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire.frames import LENGTH, peek_kind
from cartdeck_protocol.wire.kinds import Kind
from cartdeck_protocol.wire.limits import MAX_HELLO, MIB, Limits
from cartdeck_protocol.wire.violation import RemoteProtocolError

_CAPACITY: Final = 2 * MIB
_LEAST_BODY: Final = 5  # {kind, id}
_LEAST_SPACE: Final = 64 * 1024


class Splitter:
    """One growing position in one buffer; `body` is valid until the next call of `space`."""

    __slots__ = ("_buffer", "_end", "_limits", "_start", "_view", "frame", "offset")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = bytearray(_CAPACITY)  # zeroed lazily by the system: costs memory only where it was written
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.frame = 0
        """The number of the frame that `next_body` looks for, from 0."""
        self.offset = 0
        """Where in the stream that frame begins."""

    def agree(self, limits: Limits) -> None:
        """Both HELLOs are known: from now on these limits hold."""
        self._limits = limits
        needed = limits.max_chunk + 4096
        if needed > len(self._buffer):
            grown = bytearray(needed + _CAPACITY)
            size = self._end - self._start
            grown[:size] = self._view[self._start : self._end]
            self._buffer, self._view = grown, memoryview(grown)
            self._start, self._end = 0, size

    @property
    def is_between_frames(self) -> bool:
        return self._start == self._end

    def space(self) -> memoryview:
        """Where the next bytes go. What is unread moves to the front when the room behind it is short."""
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._buffer) - self._end < _LEAST_SPACE or self._needs_room():
            size = self._end - self._start
            self._view[:size] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, size
        return self._view[self._end :]

    def _needs_room(self) -> bool:
        if self._end - self._start < LENGTH.size:
            return False
        length: int = LENGTH.unpack_from(self._buffer, self._start)[0]
        return self._start + LENGTH.size + length > len(self._buffer)

    def fill(self, size: int) -> None:
        """`size` bytes were read into `space()`."""
        self._end += size

    def next_body(self, on_chunk: Callable[[memoryview, int, int], bool]) -> memoryview | None:
        """The next whole body, None when more bytes are needed.

        `on_chunk(view, start, length)` is offered each frame that begins like a CHUNK and says whether it took it.
        RemoteProtocolError (PROTOCOL_VIOLATION, FRAME_TOO_LARGE) as soon as the length or kind shows it.
        """
        while True:
            start = self._start
            available = self._end - start
            if available < LENGTH.size:
                return None
            length: int = LENGTH.unpack_from(self._buffer, start)[0]
            body = start + LENGTH.size
            if available < LENGTH.size + 3:
                self._check(length, -2)
                return None
            buffer = self._buffer
            kind = peek_kind(buffer[body], buffer[body + 1], buffer[body + 2])
            self._check(length, kind)
            if available < LENGTH.size + length:
                return None
            self._start = body + length
            if kind == Kind.CHUNK and on_chunk(self._view, start, length):
                self.advance(length)
                continue
            return self._view[body : body + length]

    def advance(self, length: int) -> None:
        """The frame of that body length was dealt with."""
        self.frame += 1
        self.offset += LENGTH.size + length

    def _check(self, length: int, kind: int) -> None:
        """`kind` is -2 while unknown, -1 where the bytes cannot begin a frame."""
        most = max(MAX_HELLO, self._limits.frame_bytes(Kind.CHUNK)) if kind == -2 else self._limits.frame_bytes(kind)
        if kind == -1:
            raise RemoteProtocolError(
                "a frame begins with a map whose first key is the kind",
                frame=self.frame,
                offset=self.offset,
                key="kind",
            )
        if length < _LEAST_BODY:
            raise RemoteProtocolError(
                f"a frame of {length} bytes; the least is {_LEAST_BODY}", frame=self.frame, offset=self.offset
            )
        if length > most:
            raise RemoteProtocolError(
                f"a frame of {length} bytes; at most {most} are agreed on for it",
                code=Code.FRAME_TOO_LARGE,
                frame=self.frame,
                offset=self.offset,
            )
