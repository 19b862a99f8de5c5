"""Owns removing what is kept: the names of a model first, then the content that nothing else needs.

It does not know handlers. Nothing is removed while it is being fetched, or while a process has it open.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cartdeck_models.hub.cached import CachedFile, CachedSnapshot, cached_snapshots, repository_folder
from cartdeck_models.inventory import HubModel, Inventory, KeptModel, WheelModel
from cartdeck_models.lock import held_at_once
from cartdeck_models.open_files import users_of
from cartdeck_models.unfinished import UnfinishedModel
from cartdeck_protocol.errors import Code, failure


def remove(inventory: Inventory, models: Sequence[KeptModel], *, is_dry: bool = False) -> dict[str, Any]:
    """Remove `models`; the record that delete-model gives. `is_dry`: only tell what would be removed.

    Raises MODEL_IN_USE with the processes that have a file open, LOCK_TIMEOUT while one is being fetched; then nothing
    was removed.
    """
    _check_unused(models, {content for model in models for content in model.contents})
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.enter_context(_unlocked(inventory, model))
        steps = [*_wheel_steps(inventory, models), *_hub_steps(inventory, models), *_unfinished_steps(models)]
        if not is_dry:
            for step in steps:
                step.take()
    return {
        "specs": [model.spec for model in models],
        "removed": [str(path) for step in steps for path in step.paths],
        "freed_bytes": sum(step.freed_bytes for step in steps),
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """What `take` removes, and the bytes that the disk gets back by it."""

    paths: tuple[Path, ...]
    freed_bytes: int
    take: Callable[[], object]


def _check_unused(models: Sequence[KeptModel], contents: Iterable[Path]) -> None:
    users = users_of(contents)
    if users:
        raise failure(
            Code.MODEL_IN_USE,
            f"{models[0].spec} is in use: {', '.join(str(user) for user in users[:5])} has {users[0].path} open.",
            argument="model",
            details={"processes": [{"pid": user.pid, "name": user.name, "path": user.path} for user in users[:100]]},
        )


@contextmanager
def _unlocked(inventory: Inventory, model: KeptModel) -> Generator[None]:
    """Hold the locks under which `model` would be fetched. Raises LOCK_TIMEOUT."""
    if isinstance(model, WheelModel):
        with held_at_once(inventory.store.lock_path(model.key), what=model.spec):
            yield
        return
    repository = model.repository if isinstance(model, UnfinishedModel) else model.snapshot.repository
    folder = inventory.cache_dir / ".locks" / repository_folder(inventory.cache_dir, repository).name
    if isinstance(model, UnfinishedModel) or len(model.files) == len(
        model.snapshot.files
    ):  # then what is being fetched may go too
        paths = sorted(folder.glob("*.lock"))
    else:
        paths = sorted({folder / f"{file.content_id}.lock" for file in model.files})
    with contextlib.ExitStack() as stack:
        for path in paths:
            if path.exists():
                stack.enter_context(held_at_once(path, what=model.spec))
        yield


def _wheel_steps(inventory: Inventory, models: Sequence[KeptModel]) -> Iterator[_Step]:
    removed = {model.key: model for model in models if isinstance(model, WheelModel)}
    needed = {inventory.store.path_of(record) for key, record, _ in inventory.store.records() if key not in removed}
    for model in removed.values():
        is_last = model.path not in needed
        needed.add(model.path)  # of two that share their content, one frees it
        take = partial(inventory.store.remove, model.key, model.record)
        yield _Step((model.path,) if is_last else (), model.size_bytes if is_last else 0, take)


def _hub_steps(inventory: Inventory, models: Sequence[KeptModel]) -> Iterator[_Step]:
    by_repository: dict[str, list[HubModel]] = {}
    for model in models:
        if isinstance(model, HubModel):
            by_repository.setdefault(model.snapshot.repository, []).append(model)
    for repository, some in by_repository.items():
        root = repository_folder(inventory.cache_dir, repository)
        files = [file for model in some for file in model.files]
        places = {file.place for file in files}
        there = [file for one in cached_snapshots(inventory.cache_dir, repository) for file in one.files]
        kept = [file for file in there if file.place not in places]
        if kept:
            freed = _needed_by_none(files, kept)
            size = sum(file.size_bytes for file in freed if not _is_shared(file))
            yield _Step(tuple(sorted(places)), size, partial(_remove_files, inventory, root, some, freed))
        else:
            size = sum(_own_size(path) for path in root.rglob("*"))
            yield _Step((root,), size, partial(_remove_repository, inventory, root, repository, files))


def _unfinished_steps(models: Sequence[KeptModel]) -> Iterator[_Step]:
    """Of a repository of which nothing is whole: all of it."""
    for model in models:
        if isinstance(model, UnfinishedModel):
            yield _Step((model.folder,), model.size_bytes, partial(shutil.rmtree, model.folder))


def _remove_files(inventory: Inventory, root: Path, models: Sequence[HubModel], freed: Sequence[CachedFile]) -> None:
    """The names first: a name without its content would be a link to nothing."""
    for model in models:
        if len(model.files) == len(model.snapshot.files):
            _remove_names_of(root, model.snapshot)
        for file in model.files:
            file.place.unlink(missing_ok=True)
            _remove_empty_folders(file.place.parent, below=root / "snapshots")
    for file in freed:
        _forget(inventory, models[0].snapshot.repository, file)
        if file.blob is not None:
            file.blob.unlink(missing_ok=True)


def _needed_by_none(files: Sequence[CachedFile], kept: Sequence[CachedFile]) -> list[CachedFile]:
    """One of `files` for each content that no file of `kept` has."""
    needed = {file.content for file in kept}
    return list({file.content: file for file in files if file.content not in needed}.values())


def _remove_names_of(root: Path, snapshot: CachedSnapshot) -> None:
    """What would lead to a commit that is no longer here."""
    for name in snapshot.refs:
        (root / "refs" / name).unlink(missing_ok=True)
        _remove_empty_folders((root / "refs" / name).parent, below=root / "refs")
    (root / "trees" / f"{snapshot.commit}.json").unlink(missing_ok=True)
    shutil.rmtree(root / ".no_exist" / snapshot.commit, ignore_errors=True)


def _remove_repository(inventory: Inventory, root: Path, repository: str, files: Sequence[CachedFile]) -> None:
    """Remove all of a repository, with listings and parts of files that never became whole."""
    for file in files:
        _forget(inventory, repository, file)
    shutil.rmtree(root)


def _forget(inventory: Inventory, repository: str, file: CachedFile) -> None:
    if file.content_id is not None:
        inventory.verified.forget(repository, file.content_id)


def _is_shared(file: CachedFile) -> bool:
    """Whether the content lies in the store that repositories share, which `hf cache prune` looks after."""
    return file.blob is not None and file.blob.is_symlink()


def _own_size(path: Path) -> int:
    return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size


def _remove_empty_folders(folder: Path, *, below: Path) -> None:
    while folder != below and below in folder.parents:
        try:
            os.rmdir(folder)  # noqa: PTH106 - only if it is empty
        except OSError:
            return
        folder = folder.parent
