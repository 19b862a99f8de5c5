"""Owns the listing of a repository at one commit: its files, and what the hub promises of each.

It does not know how a listing is fetched. A name that could lead outside its folder is refused here, before anything
of its repository is asked for.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cartdeck_models.file_name import check_relative, unsafe

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """One file: its path with `/` between the parts, its size in bytes, and what its content must hash to.

    A large (LFS) file has `sha256`, the hash of its content; any other has `git_sha1` alone, the name of its git blob:
    sha1 of `blob SIZE\\0` and the content. `size_bytes` is 0 where the hub tells none (`is_size_known` is False then).
    """

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None
    xet_hash: str | None = None
    is_size_known: bool = True

    @property
    def blob_id(self) -> str:
        """The name of the content in the hub's cache layout. Raises ValueError where the hub tells no hash."""
        name = self.sha256 or self.git_sha1
        if name is None:
            raise ValueError(f"the hub tells no hash of {self.path}")
        return name


def files_of_page(items: Iterable[Any]) -> list[RepositoryFile]:
    """The files in one page of the tree API. Raises UNSAFE_FILENAME, and ValueError for what is no such page."""
    found: list[RepositoryFile] = []
    for item in items:
        if not isinstance(item, dict):
            raise ValueError("an item of the listing is no map")
        values = cast("dict[str, Any]", item)
        path = values.get("path")
        if not isinstance(path, str):
            raise ValueError("an item of the listing has no path")
        check_relative(path)
        if values.get("type") == "file":
            found.append(_file(_file_name(path), values))
    return found


def _file_name(path: str) -> str:
    if path.endswith("/"):
        raise unsafe(path, "it ends in '/'")
    return check_relative(path)


def _file(path: str, values: dict[str, Any]) -> RepositoryFile:
    lfs = values.get("lfs")
    large = cast("dict[str, Any]", lfs) if isinstance(lfs, dict) else {}
    sha256 = large.get("oid") or large.get("sha256")
    found = large.get("size", values.get("size"))
    size = found if isinstance(found, int) and found >= 0 else None
    return RepositoryFile(
        path,
        size or 0,
        _hash(path, sha256, 64),
        _hash(path, values.get("oid"), 40),
        _hash(path, values.get("xetHash"), 64),
        size is not None,
    )


def _hash(path: str, text: Any, length: int) -> str | None:
    """`text` in lower case if it is `length` hexadecimal digits: it becomes a file name."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) != length or not set(text) <= set("0123456789abcdefABCDEF"):
        raise ValueError(f"the listing's hash of {path} is not {length} hexadecimal digits")
    return text.lower()


def listing_to_json(files: Sequence[RepositoryFile]) -> str:
    """The listing as huggingface_hub keeps it in `trees/COMMIT.json`, so that either reads what the other wrote."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted(files, key=lambda file: file.path):
        entry: dict[str, Any] = {"size": file.size_bytes, "blob_id": file.git_sha1 or ""}
        if file.sha256 is not None:
            entry |= {"lfs_sha256": file.sha256, "lfs_size": file.size_bytes}
        if file.xet_hash is not None:
            entry["xet_hash"] = file.xet_hash
        entries[file.path] = entry
    return json.dumps({"format_version": FORMAT_VERSION, "files": entries}, indent=1)


def listing_from_json(data: bytes) -> list[RepositoryFile]:
    """The listing in `data`, read as strictly as one from the network. Raises ValueError, and UNSAFE_FILENAME."""
    values = json.loads(data)
    if not isinstance(values, dict) or cast("dict[str, Any]", values).get("format_version") != FORMAT_VERSION:
        raise ValueError("the kept listing has another format")
    entries = cast("dict[str, Any]", values).get("files")
    if not isinstance(entries, dict):
        raise ValueError("the kept listing has no files")
    return [_kept_file(path, entry) for path, entry in cast("dict[str, Any]", entries).items()]


def _kept_file(path: str, entry: Any) -> RepositoryFile:
    if not isinstance(entry, dict):
        raise ValueError("the kept listing has a file that is no map")
    values = cast("dict[str, Any]", entry)
    size = values.get("lfs_size", values.get("size"))
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"the kept listing has no size of {path}")
    return RepositoryFile(
        _file_name(path),
        size,
        _hash(path, values.get("lfs_sha256"), 64),
        _hash(path, values.get("blob_id") or None, 40),
        _hash(path, values.get("xet_hash"), 64),
    )
