"""Owns the receive buffer: bytes from the pipe in, whole frame bodies out.

It does not know what a frame means; it checks lengths before anything is decoded or allocated for a body.
"""

from collections.abc import Callable
from typing import Final

from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire.frames import LENGTH, NO_FRAME, UNDECIDED, peek_kind
from cartdeck_protocol.wire.kinds import KEYS
from cartdeck_protocol.wire.limits import KIB, MIB, Limits
from cartdeck_protocol.wire.violation import RemoteProtocolError

_FIRST_CAPACITY: Final = 128 * KIB
_MOST_CAPACITY: Final = 2 * MIB
"""More than that in one read would keep the loop from the others; only a larger frame makes the buffer larger."""
_LEAST_SPACE: Final = 64 * KIB
_LEAST_BODY: Final = 5  # {kind, id}
_PEEKED: Final = 23  # a map's head and two numbers, each in its longest encoding


class Splitter:
    """One growing position in one buffer; `body` is valid until the next call of `space`.

    The buffer starts small, since most connections carry little, and doubles each time a read has filled it.
    """

    __slots__ = ("_buffer", "_end", "_most_bytes", "_start", "_view", "frame", "offset")

    def __init__(self) -> None:
        self.agree(Limits())  # until both HELLOs are known: a HELLO fits, and more is not wanted
        self._buffer = bytearray(_FIRST_CAPACITY)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.frame = 0
        """The number of the frame that `next_body` looks for, from 0."""
        self.offset = 0
        """Where in the stream that frame begins."""

    def agree(self, limits: Limits) -> None:
        """Both HELLOs are known: from now on these limits hold."""
        self._most_bytes = {int(kind): limits.frame_bytes(kind) for kind in KEYS}
        self._most_bytes[UNDECIDED] = max(self._most_bytes.values())

    @property
    def is_between_frames(self) -> bool:
        return self._start == self._end

    def space(self) -> memoryview:
        """Where the next bytes go, never empty. What is unread moves to the front when the room behind it is short."""
        size, capacity = self._end - self._start, len(self._buffer)
        if size == 0 and self._end < capacity:  # the usual case: whole frames came, and the read was not a full one
            self._start = self._end = 0
            return self._view
        wanted = max(size + _LEAST_SPACE, self._frame_bytes())
        if self._end == capacity < _MOST_CAPACITY:
            wanted = max(wanted, 2 * capacity)
        if self._start + wanted > capacity:
            self._make_room(size, max(wanted, capacity))
        return self._view[self._end :]

    def _frame_bytes(self) -> int:
        """The size of the frame that has begun, as far as known; its length was checked."""
        if self._end - self._start < LENGTH.size:
            return 0
        length: int = LENGTH.unpack_from(self._buffer, self._start)[0]
        return LENGTH.size + length

    def _make_room(self, size: int, capacity: int) -> None:
        unread = self._view[self._start : self._end]
        if capacity > len(self._buffer):
            self._buffer = bytearray(capacity)
            self._view = memoryview(self._buffer)
            self._view[:size] = unread
        else:
            self._view[:size] = bytes(unread)  # the two places may overlap
        self._start, self._end = 0, size

    def fill(self, size: int) -> None:
        """`size` bytes were read into `space()`."""
        self._end += size

    def next_body(self, takers: dict[int, Callable[[memoryview, int, int], bool]]) -> memoryview | None:
        """The next whole body, None when more bytes are needed.

        The taker of a kind is offered each frame that begins like it, as `(view, start, length)`, and says whether it
        took it.
        RemoteProtocolError (PROTOCOL_VIOLATION, FRAME_TOO_LARGE) as soon as the length or kind shows it.
        """
        while True:
            start = self._start
            available = self._end - start
            if available < LENGTH.size:
                return None
            buffer = self._buffer
            length: int = LENGTH.unpack_from(buffer, start)[0]
            body = start + LENGTH.size
            # The usual head, a small map and small numbers, needs no call.
            if available > 6 and buffer[body] & 0xF0 == 0x80 and buffer[body + 1] == 1 and buffer[body + 2] < 0x80:
                kind = buffer[body + 2]
            else:
                kind = peek_kind(self._view[body : min(self._end, body + length, body + _PEEKED)], length)
            if not _LEAST_BODY <= length <= self._most_bytes.get(kind, 0):
                raise self._fault(length, kind)
            if available < LENGTH.size + length:
                return None
            self._start = body + length
            taker = takers.get(kind)
            if taker is not None and taker(self._view, start, length):
                self.advance(length)
                continue
            return self._view[body : body + length]

    def drop(self) -> None:
        """The connection is finished: what is unread is of no use, and a length in it was not checked."""
        self._start = self._end = 0

    def advance(self, length: int) -> None:
        """The frame of that body length was dealt with."""
        self.frame += 1
        self.offset += LENGTH.size + length

    def _fault(self, length: int, kind: int) -> RemoteProtocolError:
        code, key = Code.PROTOCOL_VIOLATION, None
        if length > self._most_bytes[UNDECIDED]:
            kind = UNDECIDED  # whatever it is, and whether or not the bytes that tell are there already (law 12)
        if length < _LEAST_BODY:
            message = f"a frame of {length} bytes; the least is {_LEAST_BODY}"
        elif kind == NO_FRAME:
            message, key = "a frame begins with a map whose first key is the kind", "kind"
        elif kind not in self._most_bytes:
            message, key = f"unknown kind {kind}", "kind"
        else:
            message = f"a frame of {length} bytes; at most {self._most_bytes[kind]} are agreed on for it"
            code = Code.FRAME_TOO_LARGE
        return RemoteProtocolError(message, code=code, frame=self.frame, offset=self.offset, key=key)
