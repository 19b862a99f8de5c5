"""Owns what has come of one file so far: its bytes on disk, which of them are there, and whose they are.

It does not know where they come from. Each part lies in a folder of its own, `.parts/BLOB/…` beside the blobs:

    HOST-PID-…/   a running transfer's, with its lock, as in `staging`
    kept-…/       of one that broke off; the next transfer of the blob takes it over, by one rename
    bad-…         content that did not have the right hash, for whoever wants to look

Two processes never write in one folder, also where locks do nothing. In each, `content.part` has the bytes at their
places and `state.json` says which are there; it is written after them, so a killed process loses its last step alone.
"""

import errno
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from cartdeck_models.hub.spans import Spans
from cartdeck_models.staging import is_stale, lock_path, own_name

KEPT, BAD = "kept-", "bad-"
SAVE_STEP_BYTES = 4 * 1024 * 1024
SAVE_STEP_S = 0.2
OLD_S = 14 * 24 * 3600.0
"""A part that nobody has taken over for so long is swept."""


class Part:
    """The part in `folder`, which is this process's. `size` is None where the hub tells none.

    Its methods may be called from several threads.
    """

    def __init__(self, folder: Path, blob_id: str, size: int | None) -> None:
        self.folder = folder
        self.size = size
        self._blob_id = blob_id
        self._lock = threading.Lock()
        self._spans = Spans(_read_spans(folder, blob_id, size) or ())
        self.resumed_bytes = self._spans.size
        self._content = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._state = os.open(_state_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._state_bytes = os.fstat(self._state).st_size
        self._saved = 0
        self._saved_s = time.monotonic()
        self._is_closed = False

    @property
    def path(self) -> Path:
        return _content_path(self.folder)

    @property
    def done(self) -> int:
        """How many bytes are there."""
        with self._lock:
            return self._spans.size

    @property
    def prefix(self) -> int:
        """How many bytes are there from the beginning on."""
        with self._lock:
            return self._spans.prefix

    def gaps(self, longest: int) -> list[tuple[int, int]]:
        """What is missing, in steps of `longest` at most; the size must be known."""
        with self._lock:
            return self._spans.gaps(self.size or 0, longest=longest)

    def write(self, at: int, piece: bytes | memoryview) -> int:
        """Put `piece` at the position `at`; return the position behind it. Raises OSError."""
        end = at
        rest = memoryview(piece)
        with self._lock:  # also around the writing: a thread that is late must not write in what bears the number next
            if self._is_closed:
                raise OSError(errno.EBADF, "the part is closed")
            while rest:
                count = os.pwrite(self._content, rest, end)
                rest = rest[count:]
                end += count
            self._spans.add(at, end)
            is_far = self._spans.size - self._saved >= min(SAVE_STEP_BYTES, (self.size or 0) // 200)
            if is_far or time.monotonic() - self._saved_s >= SAVE_STEP_S:
                self._save()
        return end

    def read_into(self, buffer: memoryview, at: int) -> int:
        return os.preadv(self._content, [buffer], at)

    def forget(self) -> None:
        """Nothing of it counts any more: it begins anew."""
        with self._lock:
            self._spans = Spans()
            self._save()
            os.ftruncate(self._content, 0)

    def take_whole(self, path: Path) -> None:
        """Let the complete file `path`, on the same disk, be the content."""
        with self._lock:
            os.close(self._content)
            path.replace(self.path)
            self._content = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._spans = Spans([(0, os.fstat(self._content).st_size)])
            self._save()

    def sync(self) -> None:
        os.fsync(self._content)

    def set_bad_aside(self) -> Path:
        """Put the content beside the part under a name that says what it is, and begin anew."""
        with self._lock:
            target = self.folder.parent / f"{BAD}{secrets.token_hex(4)}"
            os.close(self._content)
            self.path.rename(target)
            self._content = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._spans = Spans()
            self._save()
        return target

    def close(self) -> None:
        with self._lock:
            if self.path.exists():
                self._save()
            self._is_closed = True
            os.close(self._content)
            os.close(self._state)

    def _save(self) -> None:
        """Write the state in one call, over the last one: never shorter, so that nothing of it is left behind."""
        values = {"blob": self._blob_id, "size": self.size, "spans": list(self._spans)}
        text = json.dumps(values).encode()
        self._state_bytes = max(self._state_bytes, len(text))
        os.pwrite(self._state, text.ljust(self._state_bytes), 0)
        self._saved = self._spans.size
        self._saved_s = time.monotonic()


@contextmanager
def opened_part(parent: Path, blob_id: str, size: int | None) -> Generator[Part]:
    """The part of `blob_id` under `parent`, taken over from a transfer that broke off if there is one.

    Afterwards it is kept if it has bytes, unless its content was moved away. Other leftovers of the blob are removed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / own_name()
    taken = _take_over(parent, folder, blob_id, size)
    if not taken:
        folder.mkdir()
    with FileLock(lock_path(folder)):
        part = Part(folder, blob_id, size)
        try:
            yield part
        finally:
            part.close()
            _leave(part)
    with suppress(OSError):
        parent.rmdir()


def kept_bytes(parent: Path, blob_id: str, size: int | None) -> int:
    """How many bytes a transfer would find there already."""
    spans = [_read_spans(folder, blob_id, size) for folder in _folders(parent) if _is_left(folder)]
    return max((found.size for found in spans if found is not None), default=0)


def sweep_parts(parts: Path) -> list[Path]:
    """Remove what nobody has taken over for two weeks from all of `parts/BLOB/`; return what was removed."""
    removed: list[Path] = []
    for parent in _folders(parts):
        for path in sorted(parent.iterdir()):
            if _age_s(path) > OLD_S and (path.name.startswith(BAD) or _is_left(path)):
                _remove(path)
                removed.append(path)
        with suppress(OSError):
            parent.rmdir()
    return removed


def _take_over(parent: Path, folder: Path, blob_id: str, size: int | None) -> bool:
    found: list[tuple[int, Path]] = []
    for left in _folders(parent):
        if _is_left(left):
            spans = _read_spans(left, blob_id, size)
            found.append((0 if spans is None else spans.size, left))
    taken = False
    for done, left in sorted(found, reverse=True):
        if not taken and done:
            with suppress(OSError):  # another process was quicker
                left.rename(folder)
                taken = True
                continue
        _remove(left)
    for bad in parent.glob(f"{BAD}*"):
        _remove(bad)
    return taken


def _leave(part: Part) -> None:
    if part.path.exists() and part.done:
        with suppress(OSError):
            part.folder.rename(part.folder.with_name(f"{KEPT}{secrets.token_hex(6)}"))
            return
    shutil.rmtree(part.folder, ignore_errors=True)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _is_left(folder: Path) -> bool:
    return folder.name.startswith(KEPT) or is_stale(folder)


def _read_spans(folder: Path, blob_id: str, size: int | None) -> Spans | None:
    """The bytes that are there according to the state, as far as the content bears it out; None where nothing fits."""
    try:
        values = cast("dict[str, Any]", json.loads(_state_path(folder).read_bytes()))
        content_bytes = _content_path(folder).stat().st_size
        if values["blob"] != blob_id or values["size"] != size or size is None:
            return None
        return Spans((int(start), min(int(end), content_bytes, size)) for start, end in values["spans"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _age_s(path: Path) -> float:
    try:
        return time.time() - max(path.lstat().st_mtime, _content_mtime(path))
    except OSError:
        return 0.0


def _content_mtime(path: Path) -> float:
    try:
        return _content_path(path).stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _content_path(folder: Path) -> Path:
    return folder / "content.part"


def _state_path(folder: Path) -> Path:
    return folder / "state.json"
