"""Owns the record of a model in the cache: what a spec gave, as a value and as the JSON file that keeps it.

It does not know where the cache is.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from cartdeck_models.file_name import check_relative
from cartdeck_protocol.errors import CartdeckError

RECORD_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a model: its path inside the model (its name, for a model of one file), size in bytes and sha256."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Record:
    """What a model spec gave. `sha256` is the file's, or a folder's tree digest; `verified` is when it was checked."""

    spec: str
    source: str
    revision: str | None
    name: str
    is_folder: bool
    sha256: str
    files: tuple[StoredFile, ...]
    verified: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> str:
        return (
            json.dumps({"format": RECORD_FORMAT, **asdict(self)}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        )


def tree_digest(files: Iterable[StoredFile]) -> str:
    """The sha256 of the lines `SHA256  PATH` of all files in the order of their paths: what `sha256sum` would list."""
    lines = [f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda file: file.path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def now_text() -> str:
    """Now, as records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def time_of(seconds: float) -> str:
    """A time, in seconds since 1970, as records write it: UTC, ISO 8601, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def record_from_json(data: bytes) -> Record:
    """The record in `data`, read strictly: it becomes paths. Raises ValueError for anything else."""
    values = _map(json.loads(data.decode("utf-8", "surrogateescape")))
    if values.get("format") != RECORD_FORMAT:
        raise ValueError("the record has another format")
    revision = values.get("revision")
    files = values.get("files")
    if not isinstance(files, list) or not files:
        raise ValueError("the record lists no files")
    return Record(
        spec=_typed(values, "spec", str),
        source=_typed(values, "source", str),
        revision=None if revision is None else _typed(values, "revision", str),
        name=_name(values, "name"),
        is_folder=_typed(values, "is_folder", bool),
        sha256=_sha256(values),
        files=tuple(_file(_map(file)) for file in cast("list[Any]", files)),
        verified=_typed(values, "verified", str),
    )


def _file(values: dict[str, Any]) -> StoredFile:
    return StoredFile(_name(values, "path"), _typed(values, "size_bytes", int), _sha256(values))


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("the record is no map")
    return cast("dict[str, Any]", value)


def _typed(values: dict[str, Any], key: str, wanted: type[V]) -> V:
    value = values.get(key)
    if type(value) is not wanted:
        raise ValueError(f"the record's {key} is no {wanted.__name__}")
    return value


def _name(values: dict[str, Any], key: str) -> str:
    try:
        return check_relative(_typed(values, key, str))
    except CartdeckError as error:
        raise ValueError(str(error)) from error


def _sha256(values: dict[str, Any]) -> str:
    text = _typed(values, "sha256", str)
    if not _SHA256.fullmatch(text):
        raise ValueError("the record's sha256 is none")
    return text
