"""Owns writing the cache of a hub's models as huggingface_hub lays it out, so that it and others find what we fetch.

It does not know requests, nor how content is verified. `cached` describes the layout and reads it; beside it lie

    .locks/models--OWNER--NAME/ID.lock        one transfer at a time per content, huggingface_hub's own among them
    models--OWNER--NAME/.parts/ID/…           what broke off, see `part`

Everything appears by one rename. Where links cannot be made, content lies in the snapshots themselves.
"""

import contextlib
import os
import secrets
import time
from pathlib import Path

from filelock import FileLock, Timeout

from cartdeck_models.disk import sync_folder
from cartdeck_models.hub.cached import repository_folder
from cartdeck_models.hub.listing import RepositoryFile, listing_from_json, listing_to_json
from cartdeck_models.hub.part import BAD, sweep_parts
from cartdeck_protocol.errors import CartdeckError

ORPHAN_AGE_S = 600.0
"""A transfer of huggingface_hub that has written nothing for so long, and whose lock is free, was killed."""

_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file marks a folder that can be made again (https://bford.info/cachedir/): backups may leave it out.\n"
)


class HubCache:
    """The cache under `root`. Raises OSError where the disk refuses."""

    def __init__(self, root: Path, *, uses_symlinks: bool = True) -> None:
        self.root = root
        self._uses_symlinks = uses_symlinks

    def folder(self, repository: str) -> Path:
        return repository_folder(self.root, repository)

    def lock_path(self, repository: str, blob_id: str) -> Path:
        return self.root / ".locks" / self.folder(repository).name / f"{blob_id}.lock"

    def blob_path(self, repository: str, blob_id: str) -> Path:
        return self.folder(repository) / "blobs" / blob_id

    def parts_folder(self, repository: str, blob_id: str) -> Path:
        return self.folder(repository) / ".parts" / blob_id

    def snapshot_path(self, repository: str, commit: str, path: str = "") -> Path:
        return self.folder(repository) / "snapshots" / commit / path

    def prepare(self, repository: str) -> None:
        """Make the folders, and remove what killed transfers left: stale parts, and huggingface_hub's orphans."""
        folder = self.folder(repository)
        for made in (folder / "blobs", folder / "snapshots", self.lock_path(repository, "x").parent):
            made.mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="utf-8")
        self.sweep(repository)

    def sweep(self, repository: str) -> None:
        """Remove what transfers left that were killed and nobody takes up. One sweeper at a time per repository."""
        try:
            with FileLock(self.lock_path(repository, "sweep"), timeout=0):
                sweep_parts(self.folder(repository) / ".parts")
                for orphan in (self.folder(repository) / "blobs").glob("*.incomplete"):
                    self._remove_orphan(repository, orphan)
        except Timeout:
            return

    def find(self, repository: str, commit: str, file: RepositoryFile) -> Path | None:
        """Where `file` stands in the snapshot, if it is there in its size; links that are missing are made."""
        place = self.snapshot_path(repository, commit, file.path)
        if has_size(place, file):
            return place
        if has_size(self.blob_path(repository, file.blob_id), file) and self._uses_symlinks:
            with contextlib.suppress(OSError):
                return self.link(repository, commit, file)
        return None

    def publish(self, repository: str, commit: str, file: RepositoryFile, content: Path) -> Path:
        """Move `content`, complete, synced and verified, to its place; where that is in the snapshot."""
        blob = self.blob_path(repository, file.blob_id)
        blob.parent.mkdir(parents=True, exist_ok=True)
        if self._uses_symlinks:
            content.replace(blob)
            sync_folder(blob.parent)
            try:
                return self.link(repository, commit, file)
            except OSError:
                content = blob
        place = self.snapshot_path(repository, commit, file.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        content.replace(place)
        sync_folder(place.parent)
        return place

    def link(self, repository: str, commit: str, file: RepositoryFile) -> Path:
        """Let the file stand in the snapshot, as a relative link to its content. Raises OSError where links cannot."""
        place = self.snapshot_path(repository, commit, file.path)
        target = os.path.relpath(self.blob_path(repository, file.blob_id), place.parent)
        if place.is_symlink() and os.readlink(place) == target:  # noqa: PTH115 - compared as text
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        staged = self.folder(repository) / "snapshots" / f".{secrets.token_hex(6)}"
        staged.symlink_to(target)
        try:
            staged.replace(place)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        return place

    def trace(self, repository: str, blob_id: str) -> object:
        """What changes while huggingface_hub fetches the content: the sizes of its partial files."""
        found: dict[str, int] = {}
        for path in (self.folder(repository) / "blobs").glob(f"{blob_id}.*.incomplete"):
            with contextlib.suppress(OSError):
                found[path.name] = path.stat().st_blocks
        return found

    def set_aside(self, repository: str, blob_id: str, content: Path) -> Path:
        """Move content that is not what its name says out of the way; where it is now."""
        folder = self.parts_folder(repository, blob_id)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{BAD}{secrets.token_hex(4)}"
        content.rename(target)
        return target

    def commit_of(self, repository: str, revision: str) -> str | None:
        """The commit that the branch or tag meant when it was last asked about."""
        try:
            commit = (self.folder(repository) / "refs" / revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        return commit if len(commit) == 40 and set(commit) <= set("0123456789abcdef") else None

    def remember_commit(self, repository: str, revision: str, commit: str) -> None:
        """Note what the branch or tag means now, where that can be noted: not beside a branch `a` one named `a/b`."""
        if revision != commit and self.commit_of(repository, revision) != commit:
            with contextlib.suppress(OSError):
                self._write(self.folder(repository) / "refs" / revision, commit)

    def listing(self, repository: str, commit: str) -> list[RepositoryFile] | None:
        """The hub's listing at `commit`, if it was kept."""
        try:
            return listing_from_json(self._listing_path(repository, commit).read_bytes())
        except (OSError, ValueError, RecursionError, CartdeckError):
            return None

    def keep_listing(self, repository: str, commit: str, files: list[RepositoryFile]) -> None:
        if all(file.is_size_known and file.git_sha1 for file in files):
            self._write(self._listing_path(repository, commit), listing_to_json(files))

    def _listing_path(self, repository: str, commit: str) -> Path:
        return self.folder(repository) / "trees" / f"{commit}.json"

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)

    def _remove_orphan(self, repository: str, orphan: Path) -> None:
        blob_id = orphan.name.partition(".")[0]
        with contextlib.suppress(OSError, Timeout):
            if time.time() - orphan.stat().st_mtime > ORPHAN_AGE_S:
                with FileLock(self.lock_path(repository, blob_id), timeout=0):
                    orphan.unlink()


def has_size(path: Path, file: RepositoryFile) -> bool:
    """Whether there is a file at `path`, of the size that the hub tells, if it tells one."""
    try:
        found = path.stat()
    except OSError:
        return False
    return not file.is_size_known or found.st_size == file.size_bytes
