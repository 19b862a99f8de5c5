"""What a server does of itself over time, on real processes and by the test's own clock: windows, returns, classes."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("starlette")

from cartdeck import CartdeckError, Engine, Settings
from cartdeck.server.models.catalog_directory import CatalogDirectory
from cartdeck.server.models.directory import Kind, SpecDirectory
from cartdeck.server.models.keeping import Keeper
from cartdeck.server.options import ServerOptions
from cartdeck.server.service import Service

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

BERLIN = ZoneInfo("Europe/Berlin")
WINDOWS = """
[models.day]
source = "act:tokens=1"
[models.day.scaling]
idle_s = 0.05
[[models.day.scaling.windows]]
days = ["mon", "tue", "wed", "thu", "fri"]
from = "08:00"
to = "12:00"
prewarm_s = 600
[[models.day.scaling.windows]]
from = "14:00"
to = "02:00"
"""
MONDAY = "2026-06-08 "


class Kept:
    """A keeper whose looks are taken one by one, at the time that the test says."""

    def __init__(self, engine: Engine, path: Path) -> None:
        directory = CatalogDirectory(path, SpecDirectory(engine.router))
        self.engine = engine
        self.path = path
        self.service = Service(engine, directory, ServerOptions())
        self.told: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.time = datetime(2026, 6, 8, tzinfo=BERLIN)
        self.keeper = Keeper(self.service, directory, tell=self._tell, every_s=1.0, zone=BERLIN, now=lambda: self.time)

    def _tell(self, text: str, record: Any) -> None:
        self.texts.append(text)
        self.told.append(dict(record))

    def look(self, text: str = "") -> None:
        """One look; at that time of the zone, where it is given."""
        if text:
            self.time = datetime.fromisoformat(text).replace(tzinfo=BERLIN)
        self.keeper.look()

    def whats(self, event: str) -> list[tuple[str, str]]:
        return [(one["name"], one["what"]) for one in self.told if one["event"] == event]

    def loads(self, name: str) -> int:
        return self.whats("model").count((name, "loaded"))

    def classes(self) -> dict[str, str]:
        """Of those that run, by the last digit of their specs."""
        live = [one for one in self.engine.pool.sessions if one.process is not None]
        return {one.key.instance.rstrip('"}')[-1]: one.priority.word for one in live}


@pytest.fixture
def keeping(declared: Callable[[str], None], quick: Callable[..., Settings], tmp_path: Path) -> Callable[..., Any]:
    declared("actor")
    path = tmp_path / "catalog.toml"

    @asynccontextmanager
    async def keep(text: str, **sections: Any) -> AsyncIterator[Kept]:
        path.write_text(text)
        async with Engine(quick(**sections)) as engine:
            yield Kept(engine, path)

    return keep


async def test_it_is_loaded_for_its_window_and_on_demand_behind_it(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    async with keeping(WINDOWS) as kept:
        kept.look(MONDAY + "07:49:59")
        assert kept.whats("schedule") == [("day", "windows")]
        assert kept.texts == ["day: next mon 2026-06-08 08:00"]
        assert not kept.classes()
        kept.look(MONDAY + "07:50")
        await wait_until(lambda: kept.loads("day"))
        for time in ("07:59:59", "08:00", "11:59:59"):
            kept.look(MONDAY + time)
        assert kept.loads("day") == 1
        assert kept.texts[-1] == "day: open until mon 2026-06-08 12:00"
        assert kept.service.schedules["day"].next_begin == datetime(2026, 6, 8, 14, tzinfo=BERLIN)
        kept.look(MONDAY + "12:00")
        assert kept.whats("schedule")[-1] == ("day", "closed")
        await wait_until(lambda: kept.look() or kept.whats("model")[-1] == ("day", "unloaded"))  # it was idle
        kept.look("2026-06-09 01:59:59")  # of the second one, past midnight
        await wait_until(lambda: kept.loads("day") == 2)
        assert kept.texts[-2].startswith("day: open until tue 2026-06-09 02:00")


async def test_a_server_that_starts_within_a_window_loads_at_once(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    async with keeping(WINDOWS) as kept:
        kept.look(MONDAY + "09:30")
        await wait_until(lambda: kept.loads("day"))
        assert not any("after its window" in text for text in kept.texts)


async def test_one_that_was_late_says_what_would_have_been_early_enough(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    async with keeping(WINDOWS.replace("tokens=1", "tokens=1,load=0.2")) as kept:
        kept.look(MONDAY + "07:59:50")
        kept.time = datetime(2026, 6, 8, 8, 0, 30, tzinfo=BERLIN)  # while it is being loaded
        await wait_until(lambda: kept.loads("day"))
        assert "30 s after its window opened: prewarm_s of" in kept.texts[-1]


async def test_an_edit_of_a_window_is_in_force_with_the_next_look(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    async with keeping(WINDOWS) as kept:
        kept.look(MONDAY + "07:00")
        assert not kept.classes()
        kept.path.write_text(WINDOWS.replace('"08:00"', '"07:05"'))
        kept.look()
        assert kept.whats("catalog") == [("day", "changed")]
        assert kept.texts[-1] == "day: next mon 2026-06-08 07:05, loaded already"
        await wait_until(lambda: kept.loads("day"))
        kept.path.write_text(WINDOWS[: WINDOWS.index("[models.day.scaling]")])
        kept.look(MONDAY + "07:30")
        assert "day" not in kept.service.schedules
        kept.path.write_text(WINDOWS.replace("windows]]", "windows]"))
        kept.look()
        assert "stays in force" in kept.texts[-1]


async def test_a_clock_that_jumps_is_followed(keeping: Callable[..., Any], wait_until: Callable[..., Any]) -> None:
    async with keeping(WINDOWS) as kept:
        kept.look(MONDAY + "07:00")
        kept.look(MONDAY + "13:00")  # over a whole window
        assert not kept.classes()
        assert kept.whats("schedule") == [("day", "windows")]
        kept.look(MONDAY + "11:00")  # back into it
        await wait_until(lambda: kept.loads("day"))
        kept.look("2031-01-01 04:00")  # years on
        assert kept.whats("schedule")[-1] == ("day", "closed")
        await wait_until(lambda: kept.look() or not kept.classes())
        kept.look("1999-06-07 15:00")
        await wait_until(lambda: kept.loads("day") == 2)


async def test_one_that_is_held_and_dies_is_loaded_again(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    async with keeping('[models.m]\nsource = "act:tokens=1"\nclass = "critical"\nscaling = {mode = "kept"}\n') as kept:
        for count in (1, 2, 3):
            await wait_until(lambda count=count: kept.look() or kept.loads("m") == count)
            assert kept.classes() == {"1": "critical"}
            [session] = kept.engine.pool.sessions
            os.kill(session.process.pid, signal.SIGKILL)
            await wait_until(lambda: not kept.classes())
        assert kept.texts[0].startswith("m is loaded, in ")
        assert kept.texts[1].startswith("m is loaded again, in ")


async def test_one_that_had_to_go_comes_back_only_where_it_takes_nobodys_place(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    text = '[models.m]\nsource = "act:tokens=1"\nscaling = {mode = "kept"}\n[models.n]\nsource = "act:tokens=2"\n'
    async with keeping(text, instances={"limit": 1}) as kept:
        kept.look()
        await wait_until(lambda: kept.loads("m"))
        say = {"messages": {"messages": [{"role": "user", "content": "hi"}]}}
        await kept.service.call(Kind.CHAT, "n", say).collect()
        assert kept.classes() == {"2": "standard"}
        kept.look()
        await wait_until(lambda: kept.whats("model")[-1] == ("m", "failed"))
        assert "m is not loaded again: There is no place" in kept.texts[-1]
        assert kept.classes() == {"2": "standard"}


async def test_an_edit_of_a_class_is_that_of_what_is_loaded_and_an_old_definition_goes_first(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    text = (
        '[models.m]\nsource = "act:tokens=1"\nscaling = {mode = "kept"}\n'
        '[models.n]\nsource = "act:tokens=2"\nclass = "critical"\nscaling = {mode = "kept"}\n'
    )
    async with keeping(text) as kept:
        kept.look()
        await wait_until(lambda: kept.loads("m") and kept.loads("n"))
        assert kept.classes() == {"1": "standard", "2": "critical"}
        kept.path.write_text(text.replace("critical", "opportunistic"))
        kept.look()
        assert kept.told[-1]["keys"] == ["class"]
        assert kept.classes() == {"1": "standard", "2": "opportunistic"}
        kept.path.write_text(text.replace("tokens=1", "tokens=3"))
        kept.look()
        assert kept.classes()["1"] == "opportunistic"
        await wait_until(lambda: kept.loads("m") == 2)
        assert kept.classes() == {"1": "opportunistic", "2": "critical", "3": "standard"}


async def test_a_guard_is_never_evicted_and_is_there_again_when_it_was(
    keeping: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    text = (
        '[guards.g]\nsource = "act:tokens=1"\nformat = "llamaguard3"\n[guards.unused]\nsource = "act:tokens=9"\n'
        'format = "llamaguard3"\n[models.m]\nsource = "act:tokens=2"\nguards = ["g"]\n'
    )
    async with keeping(text, instances={"limit": 1}) as kept:
        kept.look()
        await wait_until(lambda: kept.whats("guard") == [("g", "loaded")])
        assert kept.classes() == {"1": "held"}
        say = {"messages": {"messages": [{"role": "user", "content": "hi"}]}}
        with pytest.raises(CartdeckError, match="give way to no standard call"):
            await kept.service.call(Kind.CHAT, "m", say).collect()
        [session] = kept.engine.pool.sessions
        os.kill(session.process.pid, signal.SIGKILL)
        await wait_until(lambda: not kept.classes())
        await wait_until(lambda: kept.look() or kept.whats("guard") == [("g", "loaded")] * 2)
        kept.path.write_text('[models.m]\nsource = "act:tokens=2"\n')  # nobody is guarded: it may go
        kept.look()
        assert kept.classes() == {"1": "opportunistic"}
        assert not kept.service.guards
        await kept.service.call(Kind.CHAT, "m", say).collect()
        assert kept.classes() == {"2": "standard"}
