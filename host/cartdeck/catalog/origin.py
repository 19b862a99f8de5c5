"""Owns the origin of a model: what its source gave with the first download, and whether a later one is the same.

It does not know who obtains models, nor where the catalog is kept.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, cast

from cartdeck.catalog.entry import Origin
from cartdeck.catalog.file_mark import FileMarks
from cartdeck_protocol.errors import CartdeckError, Code, failure

FETCHED: Final = ("hub", "pypi")
"""Sources that may give something else another day. What lies on this machine is its owner's."""

SOURCE_KEYS: Final = {"origin": "source", "projector_origin": "projector"}
"""The key of an origin, and beside it the key of the source that it is of."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model's files as they are now: the revision, and each file's size and hash by its path in the source."""

    revision: str
    files: Mapping[str, tuple[int, str]]

    def table(self) -> dict[str, Any]:
        """As a catalog has it."""
        files = {path: {"size_bytes": size, "sha256": sha256} for path, (size, sha256) in self.files.items()}
        return {"revision": self.revision, "files": files}


def found_of(details: Mapping[str, Any], marks: FileMarks) -> Found | None:
    """What the record of download-model says, with hashes of the files as they lie there now; None for a model that was
    not fetched. Reads files that changed since they were hashed. Raises FILE_NOT_FOUND."""
    if details.get("source") not in FETCHED:
        return None
    revision = str(details.get("revision") or "")
    files: dict[str, tuple[int, str]] = {}
    for one in cast("list[Mapping[str, Any]]", details["files"]):
        told: Any = one.get("sha256")
        path = Path(str(one["path"]))
        size, sha256 = marks.hash_of(path, told if isinstance(told, str) else None)
        files[_inside(path, revision, Path(str(details["path"])))] = (size, sha256)
    return Found(revision, files)


def _inside(path: PurePath, revision: str, root: PurePath) -> str:
    """The path in a repository of a file that lies in a snapshot of it, else the one below the model's folder."""
    parts = path.parts
    if revision and revision in parts:
        return "/".join(parts[parts.index(revision) + 1 :])
    return path.relative_to(root).as_posix() if path != root and path.is_relative_to(root) else path.name


def check_same(keys: Sequence[str], origin: Origin, found: Found) -> None:
    """Raises HASH_MISMATCH for the first file that is not what it was with the first download. `keys` is where the
    origin stands in the catalog, such as models, NAME, origin."""
    for path, first in origin.files.items():
        now = found.files.get(path)
        if now is None:
            raise _changed(keys, f"{path} is not among its files any more", {"path": path, "expected": first.sha256})
        if now != (first.size_bytes, first.sha256):
            what = f"{path} had the sha256 {first.sha256} then, and has {now[1]} now"
            raise _changed(keys, what, {"path": path, "expected": first.sha256, "got": now[1]})


def _changed(keys: Sequence[str], what: str, details: dict[str, Any]) -> CartdeckError:
    message = (
        f"The {_whose(keys)} is not what it was with its first download: {what}. "
        f"If that is wanted, take {'.'.join(keys)} out of the catalog; else remove the file and fetch it again."
    )
    return failure(Code.HASH_MISMATCH, message, phase="obtaining", argument="model", details=details)


def _whose(keys: Sequence[str]) -> str:
    match keys:
        case ("models", name, "projector_origin"):
            return f"projector of the model {name}"
        case ("models", name, "lora", adapter, _):
            return f"adapter {adapter} of the model {name}"
        case ("guards", name, _):
            return f"guard {name}"
        case _:
            return f"model {keys[1]}"


def pinned_record(text: str, revision: str) -> str:
    """A spec that is a JSON record, at that revision where it names none."""
    record: Any = json.loads(text)
    return json.dumps({"revision": revision, **record}, ensure_ascii=False) if isinstance(record, dict) else text
