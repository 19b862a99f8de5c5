"""Owns what a server does of itself for its catalog: reading it anew, loading the models that are to be held now,
unloading idle ones.

It does not know how a model is loaded (`Holding`), nor when windows are open (`schedule`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from cartdeck.catalog.schedule import Standing, standing
from cartdeck.catalog.time_zone import time_zone
from cartdeck.catalog.window import ScheduleWindow
from cartdeck.pool.priority import Priority
from cartdeck.server.guards.verdict import VerdictTally
from cartdeck.server.models.catalog_directory import CatalogDirectory, Scaled
from cartdeck.server.models.holding import Holding, Tell
from cartdeck.server.service import Service
from cartdeck_protocol.errors import CartdeckError

_LOGGER: Final = logging.getLogger("cartdeck.server")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Keeper:
    """The looks at a catalog while its server runs. `now` is the clock by which windows are looked at; it may jump:
    each look asks it anew, and remembers no moment of it."""

    def __init__(
        self,
        service: Service,
        directory: CatalogDirectory,
        *,
        tell: Tell,
        every_s: float,
        zone: tzinfo | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._service = service
        self._directory = directory
        self._tell = tell
        self._every_s = every_s
        self._zone = zone or time_zone()
        self._now = now
        self._holding = Holding(service, tell=tell, now=now)
        self._told: dict[str, tuple[Sequence[ScheduleWindow], bool, bool]] = {}
        """Of each model with windows: those that were told last, and how they stood."""

    async def run(self) -> None:
        """Until it is cancelled. No look fails the server: what goes wrong is told."""
        try:
            while True:
                try:
                    self.look()
                except Exception:  # a mistake of ours: the next look may go well
                    _LOGGER.exception("a look at the catalog went wrong")
                await asyncio.sleep(self._every_s)
        finally:
            self._holding.close()

    def look(self) -> None:
        """One look. It waits for nothing: what takes time goes on beside it."""
        self._refresh()
        found = {one.model.name: one for one in self._directory.scaled()}
        self._holding.forget(found.keys())
        self._forget_schedules(found)
        in_use = [name for name, one in found.items() if one.is_guard]
        self._service.guards = {name: self._service.guards.get(name) or VerdictTally() for name in in_use}
        for name, one in found.items():
            is_held = one.scaling.mode == "kept"
            now = None
            if one.scaling.windows:
                now = standing(one.scaling.windows, self._now(), self._zone)
                is_held = now.is_held
                self._service.schedules[name] = now
                self._tell_schedule(name, one.scaling.windows, now)
            if is_held:
                self._holding.hold(one, now)
            else:
                self._holding.release(name)
                self._let_go(one)

    def _refresh(self) -> None:
        before = {one.model.name: one for one in self._directory.scaled()}
        try:
            found = self._directory.refresh()
        except CartdeckError as error:
            text = f"the catalog is not read anew, the one before stays in force: {error.message}"
            self._tell(text, {"event": "catalog", "error": error.message})
            return
        for change in found:
            record = {"name": change.name, "what": str(change.what), "keys": list(change.keys)}
            kind = {"kind": "guard"} if change.is_guard else {}
            self._tell(f"catalog: {change}", {"event": "catalog", **record, **kind})
        if found:
            self._reclassify(before)

    def _reclassify(self, before: dict[str, Scaled]) -> None:
        """What is loaded by a definition that is no more gives way first; the others are of the class that they have
        now, an instance that several share of the highest."""
        after = {one.model.name: one for one in self._directory.scaled()}
        for name, was in before.items():
            one = after.get(name)
            if one is None or (one.model.spec, one.model.arguments) != (was.model.spec, was.model.arguments):
                self._holding.classify(was, Priority.OPPORTUNISTIC)
                self._holding.release(name)
        for one in sorted(after.values(), key=lambda one: one.model.priority):
            self._holding.classify(one, one.model.priority)

    def _forget_schedules(self, found: dict[str, Scaled]) -> None:
        for name in [name for name in self._told if name not in found or not found[name].scaling.windows]:
            del self._told[name]
            self._service.schedules.pop(name, None)

    def _tell_schedule(self, name: str, windows: Sequence[ScheduleWindow], now: Standing) -> None:
        before, state = self._told.get(name), (windows, now.is_held, now.is_open)
        if state == before:
            return
        self._told[name] = state
        what = "windows" if before is None or before[0] != windows else "opened" if now.is_open else "prewarm"
        text = f"{name}: {now}"
        if before is not None and before[2] and not now.is_open:
            what, text = "closed", f"{name}: its window is over, it is on demand; {now}"
        self._tell(text, {"event": "schedule", "name": name, "what": what, **now.to_plain()})

    def _let_go(self, one: Scaled) -> None:
        state = self._service.states.of(one.model.name)
        idle_s = one.scaling.idle_s
        if idle_s is None or state.calls or not state.used_s or time.monotonic() - state.used_s < idle_s:
            return
        state.used_s, state.has_answered = 0.0, False
        self._holding.unload(one, [self._directory.find(one.model.name, kind) for kind in one.model.kinds])
