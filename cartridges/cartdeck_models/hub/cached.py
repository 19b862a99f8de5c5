"""Owns reading the cache of a hub's models as huggingface_hub lays it out: which repositories, commits and files.

It does not know how files come there, and changes nothing. The layout, under the cache folder:

    models--OWNER--NAME/blobs/ID            content; ID is its sha256, or the sha1 of its git blob
    models--OWNER--NAME/refs/REVISION       the commit that a branch or tag meant when it was last asked about
    models--OWNER--NAME/snapshots/COMMIT/…  the files at a commit: links to blobs, or the content itself
    models--OWNER--NAME/trees/COMMIT.json   the hub's listing at that commit
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cartdeck_models.hub.listing import RepositoryFile, listing_from_json
from cartdeck_protocol.errors import CartdeckError

_PREFIX = "models--"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT_ID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """One file of a snapshot: its path in the repository, where its name stands, and where its content lies.

    `content_id` is what the content must hash to: a sha256 of 64 digits, or a git blob's sha1 of 40; None where
    nothing tells. `blob` is the entry in `blobs` that `place` links to, None where the cache uses no links. `content`
    is the file in the end: the blob, `place` itself, or a file in the store that repositories share, which
    huggingface_hub keeps for what came through Xet.
    """

    path: str
    place: Path
    blob: Path | None
    content: Path
    size_bytes: int
    content_id: str | None
    used_s: float

    @property
    def sha256(self) -> str | None:
        return self.content_id if self.content_id is not None and len(self.content_id) == 64 else None


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """What the cache holds of a repository at a commit. `refs` are the branches and tags that mean it here."""

    repository: str
    commit: str
    folder: Path
    refs: tuple[str, ...]
    files: tuple[CachedFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum({file.content: file.size_bytes for file in self.files}.values())


def repository_folder(cache_dir: Path, repository: str) -> Path:
    return cache_dir / (_PREFIX + repository.replace("/", "--"))


def is_blob_cached(cache_dir: Path, repository: str, file: RepositoryFile) -> bool:
    """Whether the content of `file` is here, in its size."""
    name = file.sha256 or file.git_sha1
    if name is None:
        return False
    try:
        return (repository_folder(cache_dir, repository) / "blobs" / name).stat().st_size == file.size_bytes
    except OSError:
        return False


def cached_repositories(cache_dir: Path) -> list[str]:
    """The names of the repositories that the cache holds something of, in order."""
    try:
        entries = sorted(os.scandir(cache_dir), key=lambda entry: entry.name)
    except OSError:
        return []
    folders = [entry for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir()]
    return [entry.name.removeprefix(_PREFIX).replace("--", "/", 1) for entry in folders]


def cached_snapshots(cache_dir: Path, repository: str) -> list[CachedSnapshot]:
    """The snapshots of `repository` that hold a file, in the order of their commits."""
    root = repository_folder(cache_dir, repository)
    refs = _refs(root / "refs")
    snapshots: list[CachedSnapshot] = []
    for folder in _folders(root / "snapshots"):
        if not _COMMIT.fullmatch(folder.name):
            continue
        files = tuple(_files(root, folder))
        if files:
            named = tuple(sorted(name for name, commit in refs.items() if commit == folder.name))
            snapshots.append(CachedSnapshot(repository, folder.name, folder, named, files))
    return snapshots


def commits_of_refs(cache_dir: Path, repository: str) -> dict[str, str]:
    """The commit by branch or tag, as the cache remembers it."""
    return _refs(repository_folder(cache_dir, repository) / "refs")


def _files(root: Path, folder: Path) -> Iterator[CachedFile]:
    ids = _listed_ids(root, folder.name)
    for place in sorted(_walk(folder)):
        path = place.relative_to(folder).as_posix()
        try:
            content = place.resolve(strict=True)
            found = content.stat()
        except OSError:
            continue  # a link to nothing: what is not there is not listed
        if not stat.S_ISREG(found.st_mode):
            continue
        blob = _blob_of(place, root / "blobs")
        is_named = blob is not None and _CONTENT_ID.fullmatch(blob.name) is not None
        content_id = blob.name if blob is not None and is_named else ids.get(path)
        used_s = max(found.st_atime, found.st_mtime)
        yield CachedFile(path, place, blob, content, found.st_size, content_id, used_s)


def _blob_of(place: Path, blobs: Path) -> Path | None:
    """The entry in `blobs` that `place` is a link to."""
    if not place.is_symlink():
        return None
    target = Path(os.path.normpath(place.parent / place.readlink()))
    return target if target.parent == blobs else None


def _walk(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name)


def _listed_ids(root: Path, commit: str) -> dict[str, str]:
    """What the hub said each file hashes to, where its listing is kept."""
    try:
        listed = listing_from_json((root / "trees" / f"{commit}.json").read_bytes())
    except (OSError, ValueError, CartdeckError):
        return {}
    return {file.path: name for file in listed if (name := file.sha256 or file.git_sha1) is not None}


def _refs(folder: Path) -> dict[str, str]:
    refs: dict[str, str] = {}
    for path in _walk(folder):
        try:
            commit = path.read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if _COMMIT.fullmatch(commit):
            refs[path.relative_to(folder).as_posix()] = commit
    return refs


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
