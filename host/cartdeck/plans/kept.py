"""Owns what finished calls gave, kept by content in a folder: a later run does only what changed.

It does not know plans. A call's key is the definition of its cap, its cartridge and version, its arguments and the hash
of its model; so it does not matter in which plan it was made, nor whether that run came to its end.
"""

import contextlib
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
from cartdeck.plans.convert import Absent
from cartdeck.plans.flow import Flow
from cartdeck.plans.report import StepReport
from cartdeck.plans.spool import Reader
from cartdeck.router import Route, model_spec
from cartdeck_protocol.caps import CapDefinition, encode_value
from cartdeck_protocol.errors import Code, failure

_FORM: Final = 1
"""The version of the folder: what another one wrote is not found."""
_INLINE_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, cap TEXT, cartridge TEXT, at REAL, provenance TEXT, data BLOB, file TEXT
);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, sha256 TEXT);
"""


class Kept:
    """The folder of `--state`. Several runs may use it at once. Raises INSUFFICIENT_STORAGE where it cannot be
    written."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._definitions: dict[int, str] = {}
        try:
            self._objects.mkdir(parents=True, exist_ok=True)
            # Commits reach the kernel, which a killed process does not take along; the disk's cache may lag.
            self._database = sqlite3.connect(folder / "calls.sqlite", isolation_level=None, check_same_thread=False)
            for line in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA busy_timeout=10000"):
                self._database.execute(line)
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            message = f"the folder {folder} cannot keep what steps gave: {error}"
            raise failure(Code.INSUFFICIENT_STORAGE, message, argument="--state") from None

    def close(self) -> None:
        self._database.close()

    # -- keys

    async def key(self, route: Route, arguments: Mapping[str, Any], readers: Mapping[str, Sequence[Reader]]) -> str:
        """The key of a call with `arguments`; those in `readers` are read there instead, from the beginning."""
        definition = route.definition
        parts = [str(_FORM), self._definition(definition), route.cartridge.name, route.cartridge.manifest.version]
        for name in sorted(arguments):
            digest = hashlib.sha256()
            if name in readers:
                for reader in readers[name]:
                    async for entry in reader.entries():
                        await self._add(digest, entry)
                    digest.update(b"end of a source")
            else:
                argument = definition.argument(name)
                value = arguments[name]
                if not argument.is_sequence and not isinstance(value, Path):
                    value = encode_value(argument, value)
                await self._add(digest, value)
            parts.append(f"{definition.argument(name).name}={digest.hexdigest()}")
        parts.append(await self._model(definition, arguments))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _definition(self, definition: CapDefinition) -> str:
        found = self._definitions.get(id(definition))
        if found is None:
            found = self._definitions[id(definition)] = json.dumps(definition.to_plain(), sort_keys=True)
        return found

    async def _add(self, digest: Any, entry: Any) -> None:
        if isinstance(entry, Path):
            digest.update(b"file " + (await self._file_hash(entry)).encode())
            return
        if isinstance(entry, Absent):
            entry = repr(entry)
        data = entry if isinstance(entry, bytes) else _pack(entry)
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    async def _model(self, definition: CapDefinition, arguments: Mapping[str, Any]) -> str:
        """What tells one model from another: the hash of a local file; a spec that names its source as it stands."""
        spec = model_spec(definition, arguments)
        if spec is None:
            return "no model"
        path = _local_file(spec)
        return spec if path is None else await self._file_hash(path)

    async def _file_hash(self, path: Path) -> str:
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

    # -- entries of one call of a mapped step

    def find(self, key: str) -> tuple[bool, Any]:
        """Whether such a call is known, and what it gave."""
        row = self._row(key)
        if row is None:
            return False, None
        entries = [*self._entries(row)]
        return (True, entries[0]) if len(entries) == 1 else (False, None)

    def keep(self, key: str, compiled: CompiledStep, entry: Any, provenance: Mapping[str, Any]) -> None:
        with self._write(key, compiled, provenance) as write:
            write(entry)

    # -- the output of a step that is one call

    def restore(self, key: str, target: Flow | None, report: StepReport) -> bool:
        """Fill `target` with what such a call gave. Whether there was one."""
        row = self._row(key)
        if row is None:
            return False
        report.provenance = json.loads(row[0])
        for entry in self._entries(row):
            if target is not None:
                target.put(entry)
        return True

    def save(self, key: str, compiled: CompiledStep, reader: Reader | None, report: StepReport) -> None:
        """Keep what is in the value that `reader` reads."""
        with self._write(key, compiled, report.provenance) as write:
            while reader is not None and reader.position < reader.spool.count:
                write(reader.take())

    # -- rows and files

    def _row(self, key: str) -> Any:
        query = "SELECT provenance, data, file FROM calls WHERE key=?"
        row = self._database.execute(query, (key,)).fetchone()
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
            parts.append(_pack(entry))
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


def _pack(entry: Any) -> bytes:
    return cast("bytes", cast("Any", msgpack).packb(entry, default=str))


def _local_file(spec: str) -> Path | None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # no name that a file can have
        path = Path(spec).expanduser()
        return path.absolute() if path.is_file() else None
    return None


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
