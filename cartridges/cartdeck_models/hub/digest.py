"""Owns the hashes of a file: the sha256 of its content, and the name that git gives it; taken while the file grows.

It does not know where the bytes come from: it reads those of the file that are there from the beginning on.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

READ_BYTES = 1024 * 1024
MOST_PIECES = 4
"""So many pieces wait to be hashed: a fast connection is slowed to what the hash takes."""
MOST_LATE = 10_000
"""So many pieces find room when nobody hashes any more, so that no thread waits that writes its last one."""


@dataclass(frozen=True, slots=True)
class Digest:
    """`git_sha1` is None where it was not asked for."""

    sha256: str
    size_bytes: int
    git_sha1: str | None = None

    def fits(self, *, sha256: str | None, git_sha1: str | None) -> bool:
        """Whether this is the content that a hub promises: the sha256 of a large file, the git name of any other."""
        return self.sha256 == sha256 if sha256 is not None else self.git_sha1 == git_sha1

    def shown(self, *, as_sha256: bool) -> str | None:
        return self.sha256 if as_sha256 else self.git_sha1


class Readable(Protocol):
    """A growing file: how many bytes are there from its beginning on, and those bytes."""

    @property
    def prefix(self) -> int: ...

    def read_into(self, buffer: memoryview, at: int) -> int: ...


class Hasher:
    """Follows a growing file. `catch_up` may be called again and again; only what is new is read.

    `git_size` is the whole size, which git's name begins with; without it that hash is not taken, in half the time.
    """

    def __init__(self, source: Readable, git_size: int | None) -> None:
        self._source = source
        self._git_size = git_size
        self._buffer: memoryview | None = None  # made when something must be read: small files never are
        self._lock = threading.Lock()
        self.generation = 0
        self.restart()

    def restart(self) -> None:
        """The file begins anew: a piece of another `generation` is not its content."""
        with self._lock:
            self.generation += 1
            self.position = 0
            self._sha256 = hashlib.sha256()
            named = None if self._git_size is None else b"blob %d\0" % self._git_size
            self._git = None if named is None else hashlib.sha1(named)  # noqa: S324 - the name that git gives it

    def catch_up(self, is_stopped: Callable[[], bool]) -> None:
        """Hash all that is there by now, unless stopped. Raises OSError."""
        with self._lock:
            while not is_stopped():
                wanted = min(READ_BYTES, self._source.prefix - self.position)
                if wanted <= 0:
                    return
                self._buffer = self._buffer or memoryview(bytearray(READ_BYTES))
                size = self._source.read_into(self._buffer[:wanted], self.position)
                if size == 0:
                    return  # it was cut short meanwhile; its size tells
                self._update(self._buffer[:size])

    def feed(self, piece: "Piece") -> bool:
        """Hash `piece` if it is the next one, so that it need not be read again. False if it is not."""
        with self._lock:
            is_next = (piece.at, piece.generation) == (self.position, self.generation)
            if is_next:
                self._update(piece.content)
            return is_next

    def _update(self, piece: bytes | memoryview) -> None:
        self._sha256.update(piece)
        if self._git is not None:
            self._git.update(piece)
        self.position += len(piece)

    def digest(self) -> Digest:
        return Digest(self._sha256.hexdigest(), self.position, None if self._git is None else self._git.hexdigest())


@dataclass(frozen=True, slots=True)
class Piece:
    """Content that was written at `at`, while the hasher was at `generation`."""

    at: int
    content: bytes | memoryview
    generation: int


class HashingThread:
    """A hasher that follows its file in a thread of its own while others write it.

    What comes in order is hashed from where it was received; what does not is read from the file when its turn comes.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._offered: SimpleQueue[Piece | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._make_room(MOST_PIECES)
        self._is_stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def offer(self, piece: Piece) -> None:
        """`piece` was written. Its content must not change until `MOST_PIECES` further ones were offered; this waits
        while so many are there."""
        self._room.get()
        self._offered.put(piece)

    def stop(self) -> None:
        """Stop, and wait until the thread has ended. Raises what it met."""
        self._is_stopped = True
        self._offered.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (piece := self._offered.get()) is not None and not self._is_stopped:
                if not self._hasher.feed(piece) and piece.at > self._hasher.position:
                    self._hasher.catch_up(lambda: self._is_stopped)
                self._make_room(1)
        except Exception as error:
            self._error = error  # raised in the thread that stops this one
        finally:
            self._make_room(MOST_LATE)

    def _make_room(self, count: int) -> None:
        for _ in range(count):
            self._room.put(None)


class _WholeFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.prefix = path.stat().st_size

    def read_into(self, buffer: memoryview, at: int) -> int:
        del at  # read from the beginning on
        return self._file.readinto(buffer) or 0

    def close(self) -> None:
        self._file.close()


def digest_of(
    path: Path, *, on_position: Callable[[int], None], is_stopped: Callable[[], bool], wants_git: bool = True
) -> Digest:
    """The hashes of the file `path`; `on_position` is told how far it is, `is_stopped` may end it early."""
    source = _WholeFile(path)
    try:
        hasher = Hasher(source, source.prefix if wants_git else None)
        while hasher.position < source.prefix and not is_stopped():
            before, whole = hasher.position, source.prefix
            source.prefix = min(whole, before + 8 * READ_BYTES)
            hasher.catch_up(is_stopped)
            source.prefix = whole
            if hasher.position == before:
                break
            on_position(hasher.position)
        return hasher.digest()
    finally:
        source.close()
