"""Owns one file of a repository becoming content of the cache: locked, fetched, verified, moved in place.

It does not know which files a model has, nor callers: one fetch is one transfer, whoever waits for it.
"""

import contextlib
import errno
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cartdeck_models.hub.brief_transfer import BriefTransfer
from cartdeck_models.hub.cache import HubCache
from cartdeck_models.hub.digest import Digest, digest_of
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.part import Part, opened_part
from cartdeck_models.hub.refusal import PHASE
from cartdeck_models.hub.repository import Repository
from cartdeck_models.hub.small_part import MOST_BYTES, SmallPart, opened_small_part
from cartdeck_models.hub.transfer import Transfer, Wanted
from cartdeck_models.hub.xet import LEAST_BYTES, XetFailedError, XetTransfer
from cartdeck_models.lock import held, telling
from cartdeck_models.settings import Settings
from cartdeck_models.task import Advance, Task
from cartdeck_models.verified import Verified
from cartdeck_protocol.errors import CartdeckError, Code, failure

VERIFYING = "verify"
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a file stands now, its size, its sha256, and how many bytes of it had come before this fetch."""

    place: Path
    size_bytes: int
    sha256: str
    resumed_bytes: int = 0


def is_brief(file: RepositoryFile) -> bool:
    """Whether fetching `file` is so short that it is done without threads and a part on the disk."""
    return file.is_size_known and file.size_bytes <= MOST_BYTES


class Fetcher:
    """Files of hubs' repositories, into `cache`; `verified` has the marks of what was hashed."""

    def __init__(self, cache: HubCache, verified: Verified, settings: Settings) -> None:
        self._cache = cache
        self._verified = verified
        self._settings = settings

    def fetch(self, repository: Repository, file: RepositoryFile, task: Task) -> Fetched:
        """Make `file` present and verified. Raises HASH_MISMATCH, LOCK_TIMEOUT, CANCELLED, OSError, and what
        `transfer` raises."""
        name, blob_id = repository.name, file.blob_id
        lock_path, limit_s = self._cache.lock_path(name, blob_id), self._settings.lock_limit_s
        with held(lock_path, task, limit_s=limit_s, trace=lambda: self._cache.trace(name, blob_id)) as holding:
            found = self.check(name, repository.commit, file, task)
            if found is not None:
                return found
            with self._opened_part(name, file) as part:
                try:
                    digest = self._content(repository, file, part, telling(task, holding))
                    part.sync()
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT):
                        part.forget()  # the room is needed more elsewhere
                    raise
                place = self._cache.publish(name, repository.commit, file, part.path)
                self._verified.mark(name, blob_id, place.resolve())
                return Fetched(place, digest.size_bytes, digest.sha256, part.resumed_bytes)

    def _opened_part(self, name: str, file: RepositoryFile) -> AbstractContextManager[Part | SmallPart]:
        """Where the file grows: in memory if it is small and nothing of it was kept."""
        parts = self._cache.parts_folder(name, file.blob_id)
        if is_brief(file) and not parts.exists():
            return opened_small_part(self._cache.blob_path(name, file.blob_id), parts, file.size_bytes)
        return opened_part(parts, file.blob_id, file.size_bytes if file.is_size_known else None)

    def check(self, name: str, commit: str, file: RepositoryFile, task: Task) -> Fetched | None:
        """The file where it is here already and right: hashed now, unless it is marked as hashed. None otherwise.

        Content that is not what its name says was put there by another tool; it is set aside.
        """
        place = self._cache.find(name, commit, file)
        if place is None:
            return None
        content = place.resolve()
        size = content.stat().st_size
        if file.sha256 is not None and self._verified.when(name, file.blob_id, content) is not None:
            return Fetched(place, size, file.sha256)
        digest = digest_of(
            content,
            on_position=lambda at: task.report(Advance(None, "checking what is here", VERIFYING, at, size)),
            is_stopped=task.is_cancelled,
            wants_git=file.sha256 is None,
        )
        task.raise_if_cancelled(VERIFYING)
        if file.sha256 is None and file.git_sha1 is None:
            return Fetched(place, size, digest.sha256)  # nothing here tells what it should be
        if digest.fits(sha256=file.sha256, git_sha1=file.git_sha1):
            self._verified.mark(name, file.blob_id, content)
            return Fetched(place, size, digest.sha256)
        aside = self._cache.set_aside(name, file.blob_id, content)
        task.report(Advance(None, f"what was here has another hash: set aside as {aside}", PHASE, 0, file.size_bytes))
        return None

    def _content(self, repository: Repository, file: RepositoryFile, part: Part | SmallPart, task: Task) -> Digest:
        """Let the part hold the right content. Raises HASH_MISMATCH once that failed twice."""
        bad: Path | None = None
        digest: Digest | None = None
        for _ in range(ATTEMPTS):
            digest = self._transfer(repository, file, part, task)
            if digest.fits(sha256=file.sha256, git_sha1=file.git_sha1):
                if bad is not None:
                    bad.unlink(missing_ok=True)
                return digest
            if bad is not None:
                bad.unlink(missing_ok=True)
            bad = part.set_bad_aside()
            task.report(Advance(None, "what came has another hash: fetching it again", PHASE, 0, file.size_bytes))
        raise _mismatch(repository, file, digest, bad)

    def _transfer(self, repository: Repository, file: RepositoryFile, part: Part | SmallPart, task: Task) -> Digest:
        if isinstance(part, Part) and self._suits_xet(file) and not part.done:
            with contextlib.suppress(XetFailedError):
                return self._by_xet(repository, file, part, task)
        hub = self._settings.hub
        wanted = Wanted(
            repository.file_url(file.path),
            repository.asked(file.path),
            connections=hub.connections,
            stall_limit_s=self._settings.stall_limit_s,
            wants_git=file.sha256 is None,
        )
        if isinstance(part, SmallPart):
            return BriefTransfer(repository.client, wanted, part, task).run()
        return Transfer(repository.client, wanted, part, task).run()

    def _suits_xet(self, file: RepositoryFile) -> bool:
        return self._settings.hub.uses_xet and file.xet_hash is not None and file.size_bytes >= LEAST_BYTES

    def _by_xet(self, repository: Repository, file: RepositoryFile, part: Part, task: Task) -> Digest:
        target = part.folder / "xet.part"
        transfer = XetTransfer(
            repository.client, repository.name, repository.commit, quiet_limit_s=self._settings.hub.quiet_limit_s
        )
        try:
            transfer.run(file, target, task)
            part.take_whole(target)
        finally:
            target.unlink(missing_ok=True)
        digest = digest_of(part.path, on_position=_ignore, is_stopped=task.is_cancelled, wants_git=file.sha256 is None)
        task.raise_if_cancelled(PHASE)
        return digest


def _ignore(_: int) -> None: ...


def _mismatch(repository: Repository, file: RepositoryFile, digest: Digest | None, bad: Path | None) -> CartdeckError:
    kind = "sha256" if file.sha256 is not None else "git sha1"
    got = None if digest is None else digest.shown(as_sha256=file.sha256 is not None)
    size = "" if digest is None or digest.size_bytes == file.size_bytes else f", in {digest.size_bytes} bytes"
    return failure(
        Code.HASH_MISMATCH,
        f"{file.path} of {repository.name} has {kind} {got}{size}; the hub promises {file.blob_id} in "
        f"{file.size_bytes} bytes. It was fetched twice; what came is kept as {bad}.",
        phase=PHASE,
        argument="model",
        details={"expected": file.blob_id, "got": got, "kept": None if bad is None else str(bad)},
    )
