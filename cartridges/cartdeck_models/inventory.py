"""Owns what is kept on this machine, in our own cache and in the hub's: all of it, or what a spec means.

It does not know how models come there, and changes nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cartdeck_models.hub.cached import CachedFile, CachedSnapshot, cached_repositories, cached_snapshots
from cartdeck_models.hub.selection import files_named, matches, whole_groups
from cartdeck_models.local import absolute_path, exists_locally
from cartdeck_models.near_name import near_names, near_sentence
from cartdeck_models.record import Record, time_of
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec, LocalSpec, ModelSpec, PackageSpec, PypiSpec
from cartdeck_models.store import Store
from cartdeck_models.unfinished import UnfinishedModel, unfinished_of
from cartdeck_models.verified import Verified
from cartdeck_protocol.errors import CartdeckError, Code, failure

SHORTEST_COMMIT = 7


@dataclass(frozen=True, slots=True)
class WheelModel:
    """What a wheel's spec gave, in our own cache."""

    key: str
    record: Record
    path: Path
    places: tuple[Path, ...]
    used_s: float

    @property
    def spec(self) -> str:
        return self.record.spec

    @property
    def size_bytes(self) -> int:
        return self.record.size_bytes

    @property
    def contents(self) -> tuple[Path, ...]:
        return self.places

    def to_plain(self) -> dict[str, Any]:
        """The record that list-models gives of it."""
        files = [
            {"path": str(place), "size_bytes": file.size_bytes, "sha256": file.sha256}
            for place, file in zip(self.places, self.record.files, strict=True)
        ]
        return {
            "spec": self.spec,
            "source": self.record.source,
            "revision": self.record.revision,
            "refs": [],
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "files": files,
            "last_used": time_of(self.used_s),
            "verified": self.record.verified,
            "is_whole": True,
        }


@dataclass(frozen=True, slots=True)
class HubModel:
    """Files of a repository at a commit, in the hub's cache: all that are here, or those that a spec names."""

    snapshot: CachedSnapshot
    files: tuple[CachedFile, ...]
    verified: str | None

    @property
    def spec(self) -> str:
        return f"hf:{self.snapshot.repository}@{self.snapshot.commit}"

    @property
    def size_bytes(self) -> int:
        return sum({file.content: file.size_bytes for file in self.files}.values())

    @property
    def path(self) -> Path:
        return self.files[0].place if len(self.files) == 1 else self.snapshot.folder

    @property
    def places(self) -> tuple[Path, ...]:
        return tuple(file.place for file in self.files)

    @property
    def contents(self) -> tuple[Path, ...]:
        return tuple(file.content for file in self.files)

    def to_plain(self) -> dict[str, Any]:
        """As `WheelModel.to_plain`."""
        return {
            "spec": self.spec,
            "source": "hub",
            "revision": self.snapshot.commit,
            "refs": list(self.snapshot.refs),
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "files": [
                {"path": str(file.place), "size_bytes": file.size_bytes, "sha256": file.sha256} for file in self.files
            ],
            "last_used": time_of(max(file.used_s for file in self.files)),
            "verified": self.verified,
            "is_whole": True,
        }


KeptModel = WheelModel | HubModel | UnfinishedModel


class Inventory:
    """What the caches of `settings` hold."""

    def __init__(self, settings: Settings) -> None:
        self.cache_dir = settings.hub_cache_dir
        self.store = Store(settings.models_dir)
        self.verified = Verified(settings.models_dir / "verified")

    def models(self) -> list[KeptModel]:
        """All of it, in the order of the specs."""
        return sorted([*self._wheel_models(), *self._hub_models(), *self._unfinished()], key=lambda model: model.spec)

    def find(self, spec: ModelSpec) -> list[KeptModel]:
        """What `spec` means, at least one. A repository without a revision means every commit that is here.

        Raises MODEL_NOT_FOUND with what is there, FILE_NOT_FOUND for a file that is not among those of a model, and
        UNSUPPORTED for what no cache of ours keeps.
        """
        match spec:
            case PypiSpec():
                found: list[KeptModel] = [model for model in self._wheel_models() if model.key == spec.key]
            case HubSpec(is_bare=True) if exists_locally(spec.repository):
                return self.find(LocalSpec(spec.repository))
            case HubSpec():
                found = self._find_in_hub(spec)
                unfinished = None if found else unfinished_of(self.cache_dir, spec.repository)
                found += [] if unfinished is None else [unfinished]
            case LocalSpec():
                path = absolute_path(spec.path)
                found = [model for model in self.models() if path == model.path or path in model.places]
                if not found and os.path.exists(path):  # noqa: PTH110 - Path's own raises for a name that is too long
                    raise _not_ours(str(path))
            case PackageSpec():
                raise _not_ours(f"package:{spec.module}/{spec.file}")
        if not found:
            raise self._not_found(spec)
        return found

    def _wheel_models(self) -> list[WheelModel]:
        store = self.store
        return [
            WheelModel(
                key,
                record,
                store.path_of(record),
                tuple(store.file_path(record, file) for file in record.files),
                used_s,
            )
            for key, record, used_s in store.records()
            if store.path_of(record).exists()
        ]

    def _hub_models(self) -> list[HubModel]:
        names = cached_repositories(self.cache_dir)
        return [self._hub_model(one, one.files) for name in names for one in cached_snapshots(self.cache_dir, name)]

    def _unfinished(self) -> list[UnfinishedModel]:
        found = [unfinished_of(self.cache_dir, name) for name in cached_repositories(self.cache_dir)]
        return [one for one in found if one is not None]

    def _hub_model(self, snapshot: CachedSnapshot, files: Sequence[CachedFile]) -> HubModel:
        times = [
            None if file.content_id is None else self.verified.when(snapshot.repository, file.content_id, file.content)
            for file in files
        ]
        known = [time for time in times if time is not None]
        return HubModel(snapshot, tuple(files), min(known) if len(known) == len(times) else None)

    def _find_in_hub(self, spec: HubSpec) -> list[KeptModel]:
        snapshots = cached_snapshots(self.cache_dir, spec.repository)
        if spec.revision is not None:
            snapshots = [one for one in snapshots if _is_meant(one, spec.revision)]
        found: list[KeptModel] = []
        for snapshot in snapshots:
            files = _files_meant(snapshot, spec)
            if files:
                found.append(self._hub_model(snapshot, files))
        if snapshots and not found:
            wanted = spec.file or ", ".join(spec.include)
            near = near_names(wanted, (file.path for one in snapshots for file in one.files))
            raise failure(
                Code.FILE_NOT_FOUND,
                f"No file of {spec.repository} that is kept here is {wanted!r}." + near_sentence(near),
                argument="model",
            )
        return found

    def _not_found(self, spec: ModelSpec) -> CartdeckError:
        said, scheme = "that model", ""
        match spec:
            case PypiSpec():
                said, scheme = spec.canonical, "pypi:"
            case HubSpec():
                said, scheme = f"hf:{spec.repository}" + (f"@{spec.revision}" if spec.revision else ""), "hf:"
            case LocalSpec():
                said = spec.path
            case PackageSpec():
                pass
        known = [model.spec for model in self.models()]
        near = near_names(said, (one for one in known if one.startswith(scheme)))
        there = " `cartdeck models` lists what is." if known else " Nothing is."
        hint = near_sentence(near, otherwise=there)
        shown = repr(said) if isinstance(spec, LocalSpec) else said
        return failure(
            Code.MODEL_NOT_FOUND, f"{shown} is not kept here.{hint}", argument="model", details={"near": near}
        )


def _is_meant(snapshot: CachedSnapshot, revision: str) -> bool:
    is_start = len(revision) >= SHORTEST_COMMIT and snapshot.commit.startswith(revision)
    return is_start or revision in snapshot.refs


def _files_meant(snapshot: CachedSnapshot, spec: HubSpec) -> list[CachedFile]:
    files = [file for file in snapshot.files if not matches(file.path, spec.exclude)]
    if spec.include:
        files = [file for file in files if matches(file.path, spec.include)]
    if spec.file is None:
        return files
    named = whole_groups(files_named(spec.file, files), files)
    return [file for group in named for file in group.files]


def _not_ours(what: str) -> CartdeckError:
    return failure(
        Code.UNSUPPORTED,
        f"{what} is not in a cache of cartdeck, which keeps what came from a hub or a wheel. "
        "`cartdeck models` lists what there is.",
        argument="model",
    )
