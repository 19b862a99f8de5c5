"""Owns what finished calls gave, kept by content in a folder: a later run does only what changed.

It does not know plans, nor what a key is made of; so it does not matter in which plan a call was made, nor whether that
run came to its end.
"""

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import anyio.to_thread
import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck.calls.arguments import open_file
from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.flow import Flow
from cartdeck.plans.report import StepReport
from cartdeck.plans.spool import Reader
from cartdeck_protocol.errors import Code, failure

_INLINE_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, cap TEXT, cartridge TEXT, at REAL, provenance TEXT, data BLOB, file TEXT
);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, sha256 TEXT);
"""


class Kept:
    """The folder of `--state`. Several runs may use it at once. Raises NOT_WRITABLE where it cannot be
    written, INSUFFICIENT_STORAGE where the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        try:
            self._objects.mkdir(parents=True, exist_ok=True)
            # Commits reach the kernel, which a killed process does not take along; the disk's cache may lag.
            self._database = sqlite3.connect(folder / "calls.sqlite", isolation_level=None, check_same_thread=False)
            for line in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA busy_timeout=10000"):
                self._database.execute(line)
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            message = f"the folder {folder} cannot keep what steps gave: {error}. Name another with state (--state DIR)"
            is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = Code.INSUFFICIENT_STORAGE if is_full else Code.NOT_WRITABLE
            raise failure(code, message, argument="state") from None

    def close(self) -> None:
        self._database.close()

    async def file_hash(self, path: Path) -> str:
        """The sha256 of a file, which is read again only when its size or time has changed."""
        name, status = _identity(path)
        if status is not None:
            query = "SELECT sha256 FROM files WHERE path=? AND size=? AND changed=?"
            row = self._database.execute(query, (name, status.st_size, status.st_mtime_ns)).fetchone()
            if row is not None:
                return str(row[0])
        found = await anyio.to_thread.run_sync(_hash_file, path)
        if status is not None:
            values = (name, status.st_size, status.st_mtime_ns, found)
            self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", values)
        return found

    # -- what one call of a mapped step gave: an entry of each output

    def find(self, key: str, outputs: Sequence[str], report: StepReport) -> list[Any] | None:
        """What such a call gave, of each output; None if it is not known."""
        found: list[Any] = []
        for output in outputs:
            row = self._row(_row_key(key, output))
            if row is None or len(entries := [*self._entries(row)]) != 1:
                return None
            found += entries
            report.provenance = report.provenance or json.loads(row[0])
        return found

    def keep(self, key: str, compiled: CompiledStep, entries: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        for output, entry in entries.items():
            with self._write(_row_key(key, output), compiled, provenance) as write:
                write(entry)

    # -- what a step that is one call gave; one that gives nothing is kept as an output without entries

    def restore(self, key: str, targets: Mapping[str, Flow], report: StepReport) -> bool:
        """Fill `targets` with what such a call gave. Whether there was one."""
        rows: dict[str, tuple[str, bytes | None, str | None]] = {}
        for output in targets or ("",):
            row = self._row(_row_key(key, output))
            if row is None:
                return False
            rows[output] = row
        for output, row in rows.items():
            report.provenance = json.loads(row[0])
            for entry in self._entries(row):
                if output in targets:
                    targets[output].put(entry)
        return True

    def save(self, key: str, compiled: CompiledStep, readers: Mapping[str, Reader], report: StepReport) -> None:
        """Keep what is in the values that `readers` read."""
        for output in readers or ("",):
            reader = readers.get(output)
            with self._write(_row_key(key, output), compiled, report.provenance) as write:
                while reader is not None and reader.position < reader.spool.count:
                    write(reader.take())

    # -- rows and files

    def _row(self, key: str) -> tuple[str, bytes | None, str | None] | None:
        query = "SELECT provenance, data, file FROM calls WHERE key=?"
        row: tuple[str, bytes | None, str | None] | None = self._database.execute(query, (key,)).fetchone()
        if row is not None and row[2] is not None and not (self._objects / row[2]).exists():
            return None
        return row

    def _entries(self, row: Any) -> Iterator[Any]:
        unpacker = cast("Any", msgpack).Unpacker(strict_map_key=False, max_buffer_size=0)
        if row[2] is None:
            unpacker.feed(row[1])
            yield from unpacker
            return
        with (self._objects / row[2]).open("rb") as file:
            while data := file.read(_READ_BYTES):
                unpacker.feed(data)
                yield from unpacker

    @contextlib.contextmanager
    def _write(self, key: str, compiled: CompiledStep, provenance: Mapping[str, Any]) -> Generator[Any]:
        """Entries go to memory, and once they are many to a file that is moved to its place when it is whole."""
        parts: list[bytes] = []
        size = 0
        file: BinaryIO | None = None

        def write(entry: Any) -> None:
            nonlocal size, file
            parts.append(pack(entry))
            size += len(parts[-1])
            if size > _INLINE_BYTES:
                if file is None:
                    descriptor, name = tempfile.mkstemp(dir=self._objects, suffix=".part")
                    names.append(name)
                    file = os.fdopen(descriptor, "wb")
                file.write(b"".join(parts))
                parts.clear()

        names: list[str] = []
        try:
            yield write
            stored: str | None = None
            if file is not None:
                file.close()
                stored = key
                Path(names[0]).replace(self._objects / key)
            route = compiled.route
            values = (
                key, route.urn, route.cartridge.name, time.time(), json.dumps(dict(provenance), default=str),
                b"".join(parts) if stored is None else None, stored,
            )  # fmt: skip
            self._database.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        except (OSError, sqlite3.Error) as error:
            raise failure(Code.INSUFFICIENT_STORAGE, f"what a step gave cannot be kept: {error}") from None
        finally:
            if file is not None:
                file.close()
                with contextlib.suppress(OSError):
                    Path(names[0]).unlink()


def pack(entry: Any) -> bytes:
    """An entry as it is kept, and as it counts for a key."""
    return cast("bytes", cast("Any", msgpack).packb(entry, default=str))


def _row_key(key: str, output: str) -> str:
    return f"{key}-{output}" if output else key


def _identity(path: Path) -> tuple[str, os.stat_result | None]:
    """The absolute name of a file, and what says whether it has changed."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = path.expanduser().absolute()
        return str(path), path.stat()
    return str(path), None


def _hash_file(path: Path) -> str:
    with open_file(path, "file") as file:
        digest = hashlib.sha256()
        while data := file.read(_READ_BYTES):
            digest.update(data)
        return digest.hexdigest()
