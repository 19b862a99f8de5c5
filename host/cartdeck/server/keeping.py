"""Owns what a server does of itself for its catalog: reading it anew, loading the models that are kept, unloading idle
ones.

It does not know how a model is loaded: it asks for the least that makes it be there.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from cartdeck.catalog.entry import Scaling
from cartdeck.catalog.window import DAY_MINUTES
from cartdeck.server.catalog_directory import CatalogDirectory
from cartdeck.server.directory import Kind, ServedModel
from cartdeck.server.service import Service
from cartdeck_protocol.errors import CartdeckError

_LEAST: Final[Mapping[Kind, Mapping[str, Any]]] = {
    Kind.CHAT: {"messages": {"messages": [{"role": "user", "content": "."}]}, "max-tokens": 1},
    Kind.COMPLETION: {"prompt": ".", "max-tokens": 1},
    Kind.EMBEDDING: {"texts": ["."]},
}
"""The smallest request that makes a model be loaded. There is none for speech: its process is started alone."""

Tell = Callable[[str, Mapping[str, Any]], None]
"""Told what happened, in words and as a record."""


class Keeper:
    """The looks at a catalog while its server runs."""

    def __init__(self, service: Service, directory: CatalogDirectory, *, tell: Tell, every_s: float) -> None:
        self._service = service
        self._directory = directory
        self._tell = tell
        self._every_s = every_s
        self._held: set[str] = set()
        """Models that were loaded since they are to be held."""
        self._loads: set[asyncio.Task[None]] = set()
        """What is being loaded: a load takes long, and a look must not wait for it."""

    async def run(self) -> None:
        """Until it is cancelled. No look fails the server: what goes wrong is told."""
        try:
            while True:
                self._refresh()
                for model, scaling in self._directory.scaled():
                    if is_held(scaling, datetime.now().astimezone()):
                        self._hold(model)
                    else:
                        self._held.discard(model.name)
                        await self._let_go(model, scaling)
                await asyncio.sleep(self._every_s)
        finally:
            for load in self._loads:
                load.cancel()

    def _refresh(self) -> None:
        try:
            found = self._directory.refresh()
        except CartdeckError as error:
            text = f"the catalog is not read anew, the one before stays in force: {error.message}"
            self._tell(text, {"event": "catalog", "error": error.message})
            return
        for change in found:
            self._held.discard(change.name)
            record = {"name": change.name, "what": str(change.what), "keys": list(change.keys)}
            self._tell(f"catalog: {change}", {"event": "catalog", **record})

    def _hold(self, model: ServedModel) -> None:
        if model.name in self._held:
            return
        self._held.add(model.name)  # once: one that fails is told of, and tried again by those who ask for it
        load = asyncio.get_running_loop().create_task(self._load(model))
        self._loads.add(load)
        load.add_done_callback(self._loads.discard)

    async def _load(self, model: ServedModel) -> None:
        kind = next((kind for kind in model.kinds if kind in _LEAST), model.kinds[0])
        began_s = time.monotonic()
        try:
            if kind in _LEAST:
                await self._service.call(kind, model.name, _LEAST[kind]).collect()
            else:
                await self._service.engine.load(model.cap(kind), model.arguments_with({}))
        except CartdeckError as error:
            self._tell(f"{model.name} is not loaded: {error.message}", _record(model, "failed", error=error.message))
        else:
            spent_s = time.monotonic() - began_s
            self._tell(f"{model.name} is loaded, in {spent_s:.1f} s", _record(model, "loaded", seconds=spent_s))

    async def _let_go(self, model: ServedModel, scaling: Scaling) -> None:
        state = self._service.states.of(model.name)
        if scaling.idle_s is None or state.calls or not state.used_s:
            return
        if time.monotonic() - state.used_s < scaling.idle_s:
            return
        state.used_s = 0.0
        engine = self._service.engine
        count = 0
        try:
            for kind in model.kinds:
                served = self._directory.find(model.name, kind)
                count += await engine.unload(served.cap(kind), served.arguments_with({}))
        except CartdeckError as error:
            self._tell(f"{model.name} is not unloaded: {error.message}", _record(model, "failed", error=error.message))
        if count:
            self._tell(f"{model.name} is unloaded: nobody asked for {scaling.idle_s:g} s", _record(model, "unloaded"))


def is_held(scaling: Scaling, now: datetime) -> bool:
    """Whether a model is to be in memory at a time of the server's time zone."""
    minute = now.weekday() * DAY_MINUTES + now.hour * 60 + now.minute + now.second / 60
    return scaling.mode == "kept" or any(one.covers(minute, with_prewarm=True) for one in scaling.windows)


def _record(model: ServedModel, what: str, **more: Any) -> dict[str, Any]:
    return {"event": "model", "name": model.name, "what": what, **more}
