"""Owns what has come of a small file: it is held in memory until it is right, and only then written to the disk.

It does not know where the bytes come from. Nothing of it is kept when it breaks off: it is as quick to fetch again, and
a repository with hundreds of such files needs no folder, lock and state for each.
"""

import errno
import os
import secrets
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cartdeck_models.hub.part import BAD

MOST_BYTES = 1024 * 1024


class SmallPart:
    """As `part.Part`, for a file of `size` bytes. `path` has the content once `sync` was called.

    `path` has the form of huggingface_hub's own partial files, so what a killed process leaves is swept as theirs is.
    """

    resumed_bytes = 0

    def __init__(self, blob: Path, parts: Path, size: int) -> None:
        self.size = size
        self.path = blob.with_name(f"{blob.name}.{secrets.token_hex(4)}.incomplete")
        self._parts = parts
        self._lock = threading.Lock()
        self._content = bytearray()
        self._is_closed = False

    @property
    def done(self) -> int:
        return len(self._content)

    prefix = done

    def gaps(self, longest: int) -> list[tuple[int, int]]:
        """What is missing: one piece, however long steps may be."""
        del longest
        return [(self.done, self.size)] if self.done < self.size else []

    def write(self, at: int, piece: bytes | memoryview) -> int:
        """Put `piece` behind what is there, where `at` must be; return the position behind. Raises OSError."""
        with self._lock:
            if self._is_closed or at != len(self._content):
                raise OSError(errno.EBADF, "the part is closed, or begun anew")
            self._content += piece
            return len(self._content)

    def read_into(self, buffer: memoryview, at: int) -> int:
        found = self._content[at : at + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def forget(self) -> None:
        with self._lock:
            self._content = bytearray()

    def sync(self) -> None:
        """Write the content to `path`. Raises OSError."""
        with self.path.open("xb") as file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())

    def set_bad_aside(self) -> Path:
        """Write what came where `part` puts such content, and begin anew. Raises OSError."""
        self._parts.mkdir(parents=True, exist_ok=True)
        target = self._parts / f"{BAD}{secrets.token_hex(4)}"
        target.write_bytes(self._content)
        self.forget()
        return target

    def close(self) -> None:
        with self._lock:
            self._is_closed = True


@contextmanager
def opened_small_part(blob: Path, parts: Path, size: int) -> Generator[SmallPart]:
    """The part of the content that will be `blob`; what was not moved away is removed."""
    part = SmallPart(blob, parts, size)
    try:
        yield part
    finally:
        part.close()
        part.path.unlink(missing_ok=True)
