"""Classes on real processes: who is ended for whom, who waits, who is refused, and who goes first."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left", "ballast")]

MB = 1_000_000
LIMIT_S = 20.0


async def carry(engine: Engine, item: str, priority: str, **arguments: Any) -> dict[str, Any]:
    given = {"item": item, **arguments}
    return json.loads((await engine.run("carry", given, timeout_s=LIMIT_S, priority=priority)).data)


def items(engine: Engine) -> dict[str, str]:
    """Those that are loaded, with their classes."""
    return {json.loads(one.key.instance)["item"]: one.priority.word for one in engine.pool.sessions}


async def test_the_lowest_class_makes_room_whoever_was_used_last(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(memory={"budget_bytes": 1000 * MB})) as engine:
        await carry(engine, "high", "critical", reserve=300 * MB)
        await carry(engine, "middle", "standard", reserve=300 * MB)
        await carry(engine, "low", "opportunistic", reserve=300 * MB)
        assert items(engine) == {"high": "critical", "middle": "standard", "low": "opportunistic"}
        assert {one.priority for one in engine.stats().sessions} == {0, 1, 2}
        await carry(engine, "new", "standard", reserve=300 * MB)
        assert set(items(engine)) == {"high", "middle", "new"}
        await carry(engine, "newer", "standard", reserve=300 * MB)
        assert set(items(engine)) == {"high", "new", "newer"}


async def test_an_opportunistic_call_ends_no_higher_one_and_is_told_at_once(
    quick: Callable[..., Settings], tmp_path: Path
) -> None:
    async with Engine(quick(memory={"budget_bytes": 1000 * MB})) as engine:
        await carry(engine, "middle", "standard", reserve=700 * MB)
        with pytest.raises(CartdeckError, match="higher class, which gives way to no opportunistic call") as caught:
            await carry(engine, "low", "opportunistic", reserve=500 * MB)
        assert caught.value.code is Code.INSUFFICIENT_MEMORY
        assert caught.value.details["holders"][0]["class"] == "standard"
        assert caught.value.details["retry_after_s"] > 0
        assert items(engine)["middle"] == "standard"
        assert (await carry(engine, "low", "opportunistic", reserve=200 * MB))["loads"] == 1
        # once the instance is said to be of the lowest class, it makes room
        assert engine.classify("carry", {"item": "middle"}, priority="opportunistic")
        await carry(engine, "other", "opportunistic", reserve=500 * MB)
        assert "middle" not in items(engine)
        assert not engine.classify("carry", {"item": "middle"}, priority="critical")


async def test_an_opportunistic_call_waits_for_a_busy_one_of_its_class(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with Engine(quick(memory={"budget_bytes": 1000 * MB})) as engine:
        first = asyncio.create_task(carry(engine, "a", "opportunistic", reserve=700 * MB, gate=str(gate)))
        await wait_until(lambda: engine.stats().memory.used_bytes >= 700 * MB)
        second = asyncio.create_task(carry(engine, "b", "opportunistic", reserve=500 * MB))
        await wait_until(lambda: engine.stats().memory.waiting)
        gate.touch()
        await first
        assert (await second)["loads"] == 1


async def test_the_higher_class_gets_the_memory_that_a_lower_one_waited_for(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with Engine(quick(memory={"budget_bytes": 1000 * MB})) as engine:
        first = asyncio.create_task(carry(engine, "a", "opportunistic", reserve=900 * MB, gate=str(gate)))
        await wait_until(lambda: engine.stats().memory.used_bytes >= 900 * MB)
        low = asyncio.create_task(carry(engine, "low", "opportunistic", reserve=600 * MB))
        await wait_until(lambda: engine.stats().memory.waiting == 1)
        high = asyncio.create_task(carry(engine, "high", "critical", reserve=600 * MB))
        await wait_until(lambda: engine.stats().memory.waiting == 2)
        gate.touch()
        await first
        assert (await high)["loads"] == 1
        with pytest.raises(CartdeckError, match="gives way to no opportunistic"):
            await low  # what the higher one holds now is not given back for it
        assert items(engine)["high"] == "critical"


async def test_places_go_by_class_too_and_the_line_before_them(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with Engine(quick(instances={"limit": 2})) as engine:
        await carry(engine, "high", "critical")
        busy = asyncio.create_task(carry(engine, "busy", "opportunistic", gate=str(gate)))
        await wait_until(lambda: items(engine).get("busy") and engine.stats().requests.get("inference"))
        low = asyncio.create_task(carry(engine, "low", "opportunistic"))  # waits for the busy one
        await wait_until(lambda: engine.stats().requests.get("queued"))
        middle = asyncio.create_task(
            carry(engine, "middle", "standard")
        )  # overtakes it: the critical one gives way last
        assert (await middle)["loads"] == 1
        assert set(items(engine)) == {"busy", "middle"}
        gate.touch()
        await busy
        assert (await low)["loads"] == 1
        assert set(items(engine)) == {"low", "middle"}


async def test_without_a_place_for_its_class_a_call_is_refused_at_once(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        await carry(engine, "middle", "standard")
        with pytest.raises(CartdeckError, match="give way to no opportunistic call") as caught:
            await carry(engine, "low", "opportunistic")
        assert caught.value.code is Code.QUEUE_FULL
        assert caught.value.details["class"] == "opportunistic"
        assert set(items(engine)) == {"middle"}
        assert (await carry(engine, "other", "standard"))["loads"] == 1


async def test_what_a_peer_is_asked_for_is_of_its_callers_class(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        await carry(engine, "a", "critical", peer={"item": "b"})
        assert items(engine) == {"a": "critical", "b": "critical"}
