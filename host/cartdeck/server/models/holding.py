"""Owns the models that are to be in memory: each is loaded, and loaded again when it is gone; and the end of idle ones.

It does not know why one is to be held. Loading is asked for as a client would, by the least that makes it be there.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from cartdeck.catalog.schedule import Standing
from cartdeck.pool.priority import Priority
from cartdeck.server.models.catalog_directory import Scaled
from cartdeck.server.models.directory import Kind, ServedModel
from cartdeck.server.service import Service
from cartdeck_protocol.errors import CartdeckError, Code

LEAST: Final[Mapping[Kind, Mapping[str, Any]]] = {
    Kind.CHAT: {"messages": {"messages": [{"role": "user", "content": "."}]}, "max-tokens": 1},
    Kind.COMPLETION: {"prompt": ".", "max-tokens": 1},
    Kind.EMBEDDING: {"texts": ["."]},
}
"""The smallest request that makes a model be loaded. There is none for speech: its process is started alone."""
PAUSES_S: Final = (5.0, 300.0)
"""Behind a load that failed: the first pause, doubled each time, and the longest."""

Tell = Callable[[str, Mapping[str, Any]], None]
"""Told what happened, in words and as a record."""


@dataclass(slots=True)
class _Hold:
    """One model that is to be in memory."""

    is_loaded: bool = False
    """It answered; it may be gone since."""
    was_loaded: bool = False
    """It did at least once since it is held: whoever ended it needed the memory more."""
    load: "asyncio.Task[None] | None" = None
    failures: int = 0
    retry_at_s: float = 0.0


class Holding:
    """Everything runs on the loop's thread."""

    def __init__(self, service: Service, *, tell: Tell, now: Callable[[], datetime]) -> None:
        self._service = service
        self._tell = tell
        self._now = now
        self._holds: dict[str, _Hold] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """What is being loaded or unloaded: it takes long, and a look must not wait for it."""

    def hold(self, one: Scaled, window: Standing | None) -> None:
        """See to it that it is in memory. `window` is how its windows stand, where it has some."""
        name = one.model.name
        hold = self._holds.setdefault(name, _Hold())
        if hold.load is not None or time.monotonic() < hold.retry_at_s:
            return
        if hold.is_loaded and self._is_there(one):
            return
        hold.is_loaded = False
        hold.load = self._start(self._load(one, hold, window))

    def release(self, name: str) -> None:
        """It need not be in memory any more. It is not ended for that."""
        self._holds.pop(name, None)

    def forget(self, known: Collection[str]) -> None:
        """Release all but those."""
        for name in [name for name in self._holds if name not in known]:
            del self._holds[name]

    def classify(self, one: Scaled, priority: Priority) -> None:
        """Say of which class what is loaded of it is."""
        with contextlib.suppress(CartdeckError):  # no cartridge serves it any more: nothing is loaded then
            self._service.engine.classify(one.model.cap(one.kind), one.model.arguments_with({}), priority=priority)

    def unload(self, one: Scaled, ways: Sequence[ServedModel]) -> None:
        """End what is loaded of an idle model: `ways` are how it is asked for each of its kinds."""
        self._start(self._unload(one, ways))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _is_there(self, one: Scaled) -> bool:
        engine = self._service.engine
        try:
            return any(engine.is_loaded(way.cap(one.kind), way.arguments_with({})) for way in self._ways(one))
        except CartdeckError:
            return False

    def _ways(self, one: Scaled) -> list[ServedModel]:
        """The model in each profile that fits, best first. One that stands in for it is another model: it does not make
        this one be in memory. Raises UNSUPPORTED."""
        if one.is_guard:
            return [one.model]
        found = self._service.directory.find(one.model.name, one.kind)
        return [found, *(other for other in found.stand_ins if other.name == found.name)]

    async def _load(self, one: Scaled, hold: _Hold, window: Standing | None) -> None:
        model, began_s = one.model, time.monotonic()
        # One that had to go comes back into memory that nobody needs: else the two would end each other by turns.
        is_return = hold.was_loaded and not one.is_guard
        again = " again" if hold.was_loaded else ""
        try:
            await self._ask(one, Priority.OPPORTUNISTIC if is_return else model.priority)
            if is_return:
                self.classify(one, model.priority)
        except CartdeckError as error:
            first_s, longest_s = PAUSES_S
            pause_s = min(longest_s, first_s * 2.0 ** min(hold.failures, 16))
            if error.error_class.is_permanent and error.code is not Code.CANCELLED:
                pause_s = float("inf")  # until it is defined anew; who asks for it tries it again
            hold.retry_at_s = time.monotonic() + pause_s
            hold.failures += 1
            if hold.failures == 1:
                text = f"{model.name} is not loaded{again}: {error.message}"
                self._tell(text, _record(one, "failed", error=error.message))
        else:
            hold.is_loaded = hold.was_loaded = True
            hold.failures, hold.retry_at_s = 0, 0.0
            spent_s = time.monotonic() - began_s
            late = self._late_text(one, window, spent_s)
            record = _record(one, "loaded", seconds=spent_s)
            self._tell(f"{model.name} is loaded{again}, in {spent_s:.1f} s{late}", record)
        finally:
            hold.load = None

    async def _ask(self, one: Scaled, priority: Priority) -> None:
        service, model, kind = self._service, one.model, one.kind
        if kind not in LEAST:
            await service.engine.load(model.cap(kind), model.arguments_with({}), priority=priority)
        elif one.is_guard:
            await service.call_model(model, kind, LEAST[kind], priority=priority).collect()
        else:
            first, *others = self._ways(one)
            alone = replace(first, stand_ins=tuple(others))
            await service.call_model(alone, kind, LEAST[kind], priority=priority).collect()

    def _late_text(self, one: Scaled, window: Standing | None, spent_s: float) -> str:
        """What is said of one that was to be ready when its window opened, and was not."""
        if window is None or window.is_open or window.next_begin is None:
            return ""
        late_s = (self._now() - window.next_begin).total_seconds()
        if late_s <= 0:
            return ""
        return f", {late_s:.0f} s after its window opened: prewarm_s of {spent_s + 1:.0f} or more is enough for it"

    async def _unload(self, one: Scaled, ways: Sequence[ServedModel]) -> None:
        engine, name = self._service.engine, one.model.name
        count = 0
        try:
            for kind, model in zip(one.model.kinds, ways, strict=True):
                count += await engine.unload(model.cap(kind), model.arguments_with({}))
        except CartdeckError as error:
            self._tell(f"{name} is not unloaded: {error.message}", _record(one, "failed", error=error.message))
        if count:
            self._tell(f"{name} is unloaded: nobody asked for {one.scaling.idle_s:g} s", _record(one, "unloaded"))


def _record(one: Scaled, what: str, **more: Any) -> dict[str, Any]:
    return {"event": "guard" if one.is_guard else "model", "name": one.model.name, "what": what, **more}
