"""Owns the model cache: where content lies, and the record of what each model spec gave.

It does not know where content comes from. Layout under the root:

    content/SHA256/NAME      a file, or a folder (then SHA256 is its tree digest)
    records/KEY.json         what the spec with this key gave, and when it was verified; its mtime is the last use
    locks/KEY.lock, .json    one transfer at a time per key, and how far its holder is
    staging/…                folders of running transfers

Content appears under its final name by one rename, complete and on disk: a reader never sees a part of it.
"""

import contextlib
import os
import shutil
import stat
from contextlib import AbstractContextManager
from pathlib import Path

from cartdeck_models.disk import sync_folder
from cartdeck_models.record import Record, StoredFile, record_from_json
from cartdeck_models.staging import staging_folder, sweep


class Store:
    """The model cache under one root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def lock_path(self, key: str) -> Path:
        return self.root / "locks" / f"{key}.lock"

    def path_of(self, record: Record) -> Path:
        return self.root / "content" / record.sha256 / record.name

    def file_path(self, record: Record, file: StoredFile) -> Path:
        return self.path_of(record) / file.path if record.is_folder else self.path_of(record)

    def prepare(self) -> None:
        """Make the folders, and remove what killed processes left. Raises OSError where that is refused."""
        for name in ("content", "records", "locks", "staging"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        sweep(self.root / "staging")

    def staging(self) -> AbstractContextManager[Path]:
        return staging_folder(self.root / "staging")

    def find(self, key: str) -> Record | None:
        """The record of `key` if all its files are there in their recorded sizes; None otherwise."""
        path = self._record_path(key)
        try:
            record = record_from_json(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not all(_has_size(self.file_path(record, file), file.size_bytes) for file in record.files):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return record

    def records(self) -> list[tuple[str, Record, float]]:
        """All records that can be read, each with its key and when it was last used (seconds since 1970), by key."""
        found: list[tuple[str, Record, float]] = []
        for path in sorted((self.root / "records").glob("*.json")):
            try:
                found.append((path.stem, record_from_json(path.read_bytes()), path.stat().st_mtime))
            except (OSError, ValueError, RecursionError):
                continue
        return found

    def rewrite(self, key: str, record: Record) -> None:
        """Replace the record of `key`; its last use stays. Raises OSError where refused."""
        used_s = self._record_path(key).stat().st_mtime
        with self.staging() as folder:
            self._write_record(key, record, folder)
        os.utime(self._record_path(key), (used_s, used_s))

    def remove(self, key: str, record: Record) -> list[Path]:
        """Remove the record of `key`, and its content where no other record means it; what content was removed."""
        self._record_path(key).unlink(missing_ok=True)
        sync_folder(self.root / "records")
        path = self.path_of(record)
        same = [other.name for _, other, _ in self.records() if other.sha256 == record.sha256]
        if record.name in same or not path.exists():
            return []
        if record.is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
        if not same:
            shutil.rmtree(path.parent, ignore_errors=True)
        return [path]

    def publish(self, key: str, record: Record, staged: Path) -> Path:
        """Move `staged`, complete and synced, to its place, and write its record. Raises OSError where refused."""
        target = self.path_of(record)
        target.parent.mkdir(parents=True, exist_ok=True)
        if record.is_folder:
            self._move_folder(record, staged, target)
        else:
            staged.replace(target)
        sync_folder(target.parent)
        self._write_record(key, record, staged.parent)
        return target

    def _move_folder(self, record: Record, staged: Path, target: Path) -> None:
        if all(_has_size(self.file_path(record, file), file.size_bytes) for file in record.files):
            return
        with contextlib.suppress(FileNotFoundError):
            target.rename(staged.with_name("replaced"))
        try:
            staged.rename(target)
        except OSError:
            if not all(_has_size(self.file_path(record, file), file.size_bytes) for file in record.files):
                raise

    def _write_record(self, key: str, record: Record, folder: Path) -> None:
        staged = folder / "record.json"
        with staged.open("w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(record.to_json())
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._record_path(key))
        sync_folder(self.root / "records")

    def _record_path(self, key: str) -> Path:
        return self.root / "records" / f"{key}.json"


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes
