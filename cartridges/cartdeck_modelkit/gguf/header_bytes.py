"""Owns reading the beginning of a model file: only as far as asked, never past a limit, never by a declared size alone.

It does not know what the bytes mean beyond GGUF's numbers and strings.
"""

import struct
from typing import Protocol

from cartdeck_protocol.errors import CartdeckError, Code, failure

HEADER_LIMIT_BYTES = 128 * 1024 * 1024
"""The longest header that is read; those of real models end before 30 MiB (a vocabulary of 260,000 and its merges)."""

MARK_EVERY = 1024
"""How many strings of an array lie between two remembered positions."""

_FIRST_READ_BYTES = 1024 * 1024
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Source(Protocol):
    """What a header is read from: an open file, or what stands for one that lies elsewhere."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        ...

    def seek(self, offset: int, /) -> int: ...


class HeaderBytes:
    """A cursor over the beginning of `file`, which is `size_bytes` long.

    Every method raises `MODEL_TRUNCATED` when the file ends too early and `BAD_MODEL_FILE` when a length in it points
    beyond `HEADER_LIMIT_BYTES`, which no true header does.
    """

    def __init__(self, file: Source, *, path: str, size_bytes: int) -> None:
        self.position = 0
        self._file = file
        self._path = path
        self._size_bytes = size_bytes
        self._data = bytearray()

    def u32(self) -> int:
        """The next unsigned 32-bit number."""
        value: int = _U32.unpack_from(self._data, self._advance(4))[0]
        return value

    def u64(self) -> int:
        """The next unsigned 64-bit number."""
        value: int = _U64.unpack_from(self._data, self._advance(8))[0]
        return value

    def take(self, size_bytes: int) -> bytes:
        """The next `size_bytes` bytes."""
        start = self._advance(size_bytes)
        return bytes(self._data[start : start + size_bytes])

    def string(self) -> bytes:
        """The next string: its length as u64, then its bytes."""
        return self.take(self.u64())

    def skip(self, size_bytes: int) -> None:
        """Goes on by `size_bytes`."""
        self._advance(size_bytes)

    def skip_strings(self, count: int) -> tuple[int, list[int]]:
        """Goes on past `count` strings. Returns the longest one's bytes, and where every `MARK_EVERY`th begins."""
        if count * 8 > HEADER_LIMIT_BYTES:
            raise self.corrupt(f"an array of {count:,} strings")
        marks: list[int] = []
        longest, unpack = 0, _U64.unpack_from
        for first in range(0, count, MARK_EVERY):
            at = self.position
            marks.append(at)
            for _ in range(min(MARK_EVERY, count - first)):
                try:
                    (length,) = unpack(self._data, at)
                except (struct.error, OverflowError):
                    self._fill(at + 8)
                    (length,) = unpack(self._data, at)
                if length > longest:  # noqa: PLR1730 - max() doubles the time of this loop
                    longest = length
                at += 8 + length
            self._fill(at)
            self.position = at
        return longest, marks

    def corrupt(self, found: str) -> CartdeckError:
        """The error for a header that says something no true one says."""
        return failure(
            Code.BAD_MODEL_FILE,
            f"{self._path}: the GGUF header is damaged: it has {found} (read up to byte {self.position:,})",
            details={"found": "a damaged GGUF header", "position": self.position},
        )

    def _advance(self, size_bytes: int) -> int:
        start = self.position
        self._fill(start + size_bytes)
        self.position = start + size_bytes
        return start

    def _fill(self, end: int) -> None:
        """Reads on until the first `end` bytes are there."""
        have = len(self._data)
        if end <= have:
            return
        if end > HEADER_LIMIT_BYTES:
            raise self.corrupt(f"a length that points to byte {end:,}")
        if end <= self._size_bytes:
            wanted = min(max(end, 2 * have, _FIRST_READ_BYTES), self._size_bytes, HEADER_LIMIT_BYTES)
            self._data += self._file.read(wanted - have)
        if end > len(self._data):
            raise truncated(self._path, size_bytes=self._size_bytes, needed_bytes=end, is_at_least=True)


def truncated(path: str, *, size_bytes: int, needed_bytes: int, is_at_least: bool = False) -> CartdeckError:
    """The error for a model file whose end is missing. `is_at_least`: cut inside the header, so more may be missing."""
    needed = f"at least {needed_bytes:,}" if is_at_least else f"{needed_bytes:,}"
    return failure(
        Code.MODEL_TRUNCATED,
        f"{path} is cut off: it has {size_bytes:,} bytes and needs {needed}; fetch it again",
        details={"size": size_bytes, "needed": needed_bytes},
    )
