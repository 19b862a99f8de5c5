"""Owns what a spec of a hub's model means now: the commit, the files, and whether the hub must be asked about it.

It does not know transfers. What the cache can tell is not asked: a commit hash with all its files here costs nothing.
"""

from dataclasses import dataclass

from cartdeck_models.hub.cache import HubCache
from cartdeck_models.hub.cached import cached_snapshots
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.selection import Choice, choose_files
from cartdeck_models.spec import HubSpec
from cartdeck_protocol.errors import CartdeckError, Code, failure

DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of `choice` at `commit`; `note` is what the caller should know of them."""

    commit: str
    choice: Choice[RepositoryFile]
    note: str | None = None


def plan_from_cache(spec: HubSpec, commit: str, cache: HubCache) -> Plan | None:
    """The plan where the cache alone tells it and holds all its files; None otherwise.

    The hub's own listing tells for any spec. Without it, what lies in the snapshot tells for a GGUF model or a file
    that is named: whether a set of other files is whole, it does not. Raises what `choose_files` raises for a listing.
    """
    listing = cache.listing(spec.repository, commit)
    if listing is not None:
        choice = choose_files(listing, spec, wants_projector=spec.with_projector)
        is_whole = all(cache.find(spec.repository, commit, file) is not None for file in choice.files)
        return Plan(commit, choice) if is_whole else None
    try:
        here = _files_here(spec.repository, commit, cache)
        choice = choose_files(here, spec, wants_projector=spec.with_projector)
    except CartdeckError:
        return None
    return Plan(commit, choice) if choice.main is not None else None


def _files_here(repository: str, commit: str, cache: HubCache) -> list[RepositoryFile]:
    found: list[RepositoryFile] = []
    for snapshot in cached_snapshots(cache.root, repository):
        if snapshot.commit == commit:
            for file in snapshot.files:
                git_sha1 = file.content_id if file.content_id is not None and file.sha256 is None else None
                found.append(RepositoryFile(file.path, file.size_bytes, file.sha256, git_sha1))
    return found


def offline_error(spec: HubSpec, commit: str | None) -> CartdeckError:
    """The error for a model that is not, or not wholly, in the cache while no request may be made."""
    revision = spec.revision or DEFAULT_REVISION
    what = f"{spec.repository}@{revision}" + (f", {spec.file}," if spec.file else "")
    known = "nothing of it" if commit is None else f"not all that is needed of commit {commit}"
    return failure(
        Code.OFFLINE_NOT_CACHED,
        f"{what} is not in the cache ({known}), and offline mode is set (HF_HUB_OFFLINE). "
        "Unset it and fetch the model once, or name a model that `cartdeck models` lists.",
        argument="model",
        details={"repository": spec.repository, "revision": revision, "commit": commit},
    )
