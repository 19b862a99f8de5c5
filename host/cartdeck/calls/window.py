"""Owns how many chunks of one output may be on their way, and the engine's reserve from which a window grows.

It does not know who takes them. A window counts chunks, whatever they hold, so a wide one for large chunks would hold
much memory (60 readers that stop, at 16 chunks of 256 KiB, hold 240 MiB) and a narrow one for small chunks costs speed
(a chunk for each 16-byte item: 30,000 a second with 4 on their way, 80,000 with 32). Large chunks need a wide one too
where the reader is fast: with 4 on their way the two processes take turns at the pipe (1.2 GB/s), with 16 they work at
the same time (1.9 GB/s). So windows begin narrow, and grow for small chunks and fast readers as long as the reserve
covers the worst case.
"""

from typing import Final

from cartdeck_protocol.wire import InStream

_SMALL_BYTES: Final = 16 * 1024
"""Above this average half of the widest window gives all the speed: the pipe is full then."""


class Reserve:
    """Memory set aside for windows that grew, of all streams of an engine together."""

    __slots__ = ("_chunk_bytes", "_free_chunks")

    def __init__(self, reserve_bytes: int, *, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._free_chunks = reserve_bytes // chunk_bytes

    @property
    def free_bytes(self) -> int:
        return self._free_chunks * self._chunk_bytes

    def borrow(self, chunks: int) -> int:
        """`chunks`, or 0 where the reserve does not cover all of them."""
        if chunks > self._free_chunks:
            return 0
        self._free_chunks -= chunks
        return chunks

    def give_back(self, chunks: int) -> None:
        self._free_chunks += chunks


class Window:
    """The window of one stream. `take` each chunk that was used up; `close` when the stream or its call is over."""

    __slots__ = ("_batch", "_bytes", "_chunks", "_extra", "_grown_credit", "_reserve", "_stream", "_untaken")

    def __init__(self, stream: InStream, reserve: Reserve, *, credit: int, grown_credit: int) -> None:
        self._stream = stream
        self._reserve = reserve
        self._batch = max(1, credit // 2)
        self._grown_credit = grown_credit
        self._extra = 0
        self._untaken = 0
        self._chunks = 0
        self._bytes = 0

    def take(self, size: int, *, is_last: bool) -> None:
        """A chunk of `size` bytes was used up; `is_last` when no other waits, so that the reader is ahead of the wire.
        Credit goes back in batches of half a window."""
        self._untaken += 1
        self._chunks += 1
        self._bytes += size
        if self._untaken >= self._batch:
            if not self._extra:
                if self._bytes < self._chunks * _SMALL_BYTES:
                    self._grow(self._grown_credit)
                elif is_last:
                    self._grow(self._grown_credit // 2)
            untaken, self._untaken = self._untaken, 0
            self._stream.take(untaken)

    def _grow(self, credit: int) -> None:
        extra = self._reserve.borrow(max(0, credit - 2 * self._batch))
        if extra:
            self._extra = extra
            self._untaken += extra
            self._batch += extra // 2

    def close(self) -> None:
        """Give back what was borrowed, and borrow no more; chunks that wait may still be taken."""
        extra, self._extra = self._extra, 0
        self._grown_credit = 0
        self._reserve.give_back(extra)
