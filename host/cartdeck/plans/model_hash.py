"""Owns what tells one model from another for a kept result: the hash of the files that a spec means, once for each run.

It does not know model formats, nor where models come from: it asks the cap download-model, as the step's own cartridge
would, so nothing is fetched that the step would not fetch.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from cartdeck.plans.step_call import Listener, StepCall
from cartdeck.switch import Switch
from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition
from cartdeck_protocol.errors import CartdeckError, Code

OBTAIN: Final = "download-model"
_SPEC_TAGS: Final = frozenset({"model-spec", "projector-spec"})
_LIST_TAG: Final = "lora-adapters"
_NOBODY: Final = frozenset({Code.NO_SUCH_CAP, Code.CARTRIDGE_UNAVAILABLE})


class ModelHashes:
    """Which files the specs of a run mean, each looked at once. `hash_file` gives the sha256 of a file that is here."""

    def __init__(self, engine: Switch, hash_file: Callable[[Path], Awaitable[str]]) -> None:
        self._engine = engine
        self._hash_file = hash_file
        self._known: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, spec: str, listener: Listener, *, timeout_s: float | None) -> str:
        """The hash of all files of the model. Raises what download-model raises."""
        async with self._locks.setdefault(spec, asyncio.Lock()):
            found = self._known.get(spec)
            if found is None:
                found = self._known[spec] = await self._look(spec, listener, timeout_s)
            return found

    async def _look(self, spec: str, listener: Listener, timeout_s: float | None) -> str:
        path = _local_path(spec)
        if path is not None:
            return await self._digest({name: (place, None) for name, place in _files_at(path)})
        call = StepCall(
            self._engine, f"cap:{OBTAIN}", {"model": spec},
            timeout_s=timeout_s, keeps=True, listener=listener, conformances={},
        )  # fmt: skip
        try:
            call.begin()
            details: dict[str, Any] = json.loads((await call.collect()).output("details"))
        except CartdeckError as error:
            if error.code in _NOBODY:  # then the cartridge has ways of its own, and the spec is all there is to tell
                return spec
            raise
        finally:
            await call.settle()
        return await self._digest(_files_of(details))

    async def _digest(self, files: Mapping[str, tuple[Path, str | None]]) -> str:
        lines = [f"{known or await self._hash_file(place)}  {name}" for name, (place, known) in sorted(files.items())]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files_of(details: Mapping[str, Any]) -> dict[str, tuple[Path, str | None]]:
    """Of the record `details` of download-model each file: its path inside the model, its place, its sha256."""
    root = Path(details["path"])
    found: dict[str, tuple[Path, str | None]] = {}
    for file in cast("list[dict[str, Any]]", details["files"]):
        place = Path(file["path"])
        name = str(place.relative_to(root)) if place != root and place.is_relative_to(root) else place.name
        found[name] = (place, file["sha256"])
    return found


def _local_path(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        return path.absolute() if path.is_file() or path.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # no name that a file can have
        return None


def _files_at(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    for root, folders, names in os.walk(path):
        folders.sort()
        for name in names:
            place = Path(root, name)
            if place.is_file():
                yield str(place.relative_to(path)), place


def model_specs(definition: CapDefinition, arguments: Mapping[str, Any]) -> list[str]:
    """The specs of all models that a call is made with, the defaults too, in the order of the arguments."""
    found: list[str] = []
    for argument in definition.arguments.values():
        tags = argument.media.tags.keys()
        if _SPEC_TAGS & tags:
            found += [spec for spec in [_text(_given(argument, arguments))] if spec]
        elif _LIST_TAG in tags:
            found += _listed(_given(argument, arguments))
    return found


def _given(argument: ArgumentDefinition, arguments: Mapping[str, Any]) -> Any:
    for name in (argument.name, str(argument.media)):
        if name in arguments:
            return arguments[name]
    return argument.default if argument.has_default else None


def _text(given: Any) -> str:
    if given is None:
        return ""
    if isinstance(given, bytes):
        return given.decode("utf-8", "replace")
    return json.dumps(given) if isinstance(given, Mapping | list) else str(given)


def _listed(given: Any) -> list[str]:
    """The specs in a list of adapters: texts, or records of `model` and more. What is no such list is the cap's to
    refuse."""
    try:
        entries: Any = json.loads(given) if isinstance(given, str | bytes) else given
    except ValueError:
        return []
    if not isinstance(entries, list):
        return []
    models: list[Any] = [
        cast("dict[str, Any]", one).get("model") if isinstance(one, dict) else one for one in cast("list[Any]", entries)
    ]
    return [one for one in models if isinstance(one, str)]
