"""The memory budget on real processes: asked for before a load, made room for, waited for, refused, tried again."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Engine, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left", "ballast")]

MB = 1_000_000
LIMIT_S = 20.0


async def carry(engine: Engine, item: str, **arguments: Any) -> dict[str, Any]:
    """What the process that holds the item says."""
    return json.loads((await engine.run("carry", {"item": item, **arguments}, timeout_s=LIMIT_S)).data)


async def failure_of(work: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await work
    return caught.value


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Calls that are given it stay busy until it is made."""
    return tmp_path / "gate"


def lift(gate: Path) -> None:
    gate.touch()


async def told_until(call: Call, phase: str) -> list[Progress]:
    """What the call said until it named the phase."""
    told: list[Progress] = []
    async for event in call:
        if isinstance(event, Progress):
            told.append(event)
            if event.phase == phase:
                return told
    pytest.fail(f"the call never named {phase}: {told}")


@asynccontextmanager
async def busy(engine: Engine, item: str, gate: Path, **arguments: Any) -> AsyncIterator[Call]:
    """A call that has loaded its item, and stays there until the gate is made or the context left."""
    async with engine.call("carry", {"item": item, "gate": gate, **arguments}, timeout_s=LIMIT_S) as call:
        await told_until(call, "inference")
        yield call


def budget(size_bytes: int, **memory: Any) -> dict[str, Any]:
    return {"memory": {"budget_bytes": size_bytes, **memory}}


async def test_an_idle_one_is_evicted_before_the_next_is_loaded(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        first = await carry(engine, "a", reserve=700 * MB)
        assert first["grant"]["granted_bytes"] == 700 * MB
        assert first["grant"]["budget_bytes"] == 1000 * MB
        assert first["grant"]["free_bytes"] == 300 * MB
        second = await carry(engine, "b", reserve=500 * MB)
        assert second["grant"]["granted_bytes"] == 500 * MB
        assert not runs(first["pid"])
        assert [one.key.instance for one in engine.pool.sessions] == ['{"item":"b"}']


async def test_what_fits_evicts_nobody(quick: Callable[..., Settings], runs: Callable[[int], bool]) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        pids = [(await carry(engine, item, reserve=300 * MB))["pid"] for item in "abc"]
        assert all(runs(pid) for pid in pids)
        assert engine.stats().memory.used_bytes == 900 * MB


async def test_the_one_unused_for_longest_makes_room(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        pids = {item: (await carry(engine, item, reserve=300 * MB))["pid"] for item in "abc"}
        await carry(engine, "a")
        await carry(engine, "d", reserve=200 * MB)
        assert {item: runs(pid) for item, pid in pids.items()} == {"a": True, "b": False, "c": True}


async def test_a_busy_one_is_waited_for_and_the_caller_is_told(
    quick: Callable[..., Settings], runs: Callable[[int], bool], wait_until: Callable[..., Any], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        async with busy(engine, "a", gate, reserve=700 * MB) as first:
            second = asyncio.create_task(load_and_tell(engine, "b", reserve=500 * MB))
            await wait_until(lambda: engine.stats().memory.waiting)
            lift(gate)
            pid = json.loads((await first.collect()).data)["pid"]
            told, record = await second
        assert record["grant"]["granted_bytes"] == 500 * MB
        assert not runs(pid)
        waits = [one for one in told if one.message.startswith("waiting for memory")]
        assert waits[0].phase == "queued"
        assert waits[0].message == ("waiting for memory: 500 MB needed, 300 MB free; held by ballast (700 MB, busy)")
        fractions = [one.fraction for one in told if one.fraction is not None]
        assert fractions == sorted(fractions)


async def load_and_tell(engine: Engine, item: str, **arguments: Any) -> tuple[list[Progress], dict[str, Any]]:
    async with engine.call("carry", {"item": item, **arguments}, timeout_s=LIMIT_S) as call:
        told = [event async for event in call if isinstance(event, Progress)]
    return told, json.loads(call.result.data)


async def test_a_wait_that_is_too_long_is_refused_with_who_holds_it_and_the_process_is_usable(
    quick: Callable[..., Settings], gate: Path
) -> None:
    settings = quick(**budget(1000 * MB, wait_s=0.2))
    async with Engine(settings) as engine, busy(engine, "a", gate, reserve=700 * MB):
        error = await failure_of(carry(engine, "b", reserve=500 * MB))
        assert error.code is Code.INSUFFICIENT_MEMORY
        assert (error.details["need"], error.details["free"]) == (500 * MB, 300 * MB)
        assert error.details["holders"] == [
            {
                "cartridge": "ballast",
                "instance": '{"item":"a"}',
                "bytes": 700 * MB,
                "state": "busy",
                "class": "standard",
            }
        ]
        assert error.details["retry_after_s"] > 0
        pid = next(one.process.pid for one in engine.pool.sessions if one.key.instance == '{"item":"b"}')
        assert (await carry(engine, "b", reserve=200 * MB))["pid"] == pid


async def test_what_is_larger_than_the_budget_is_refused_at_once_and_evicts_nobody(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        pid = (await carry(engine, "a", reserve=700 * MB))["pid"]
        error = await failure_of(carry(engine, "b", reserve=1001 * MB))
        assert error.code is Code.INSUFFICIENT_MEMORY
        assert error.details["need"] == 1001 * MB
        assert "memory.budget_bytes" in str(error)
        assert runs(pid)


async def test_no_budget_is_no_limit(quick: Callable[..., Settings], runs: Callable[[int], bool]) -> None:
    async with Engine(quick(**budget(0))) as engine:
        first = await carry(engine, "a", reserve=10**15)
        second = await carry(engine, "b", reserve=10**15)
        assert second["grant"] == {"granted_bytes": 10**15, "budget_bytes": None, "free_bytes": None}
        assert runs(first["pid"])


async def test_memory_that_was_never_asked_for_counts_as_it_is_measured(
    quick: Callable[..., Settings], runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(**budget(200 * MB))) as engine:
        first = await carry(engine, "a", reserve=-1, hold=120 * MB)
        second = await carry(engine, "b", reserve=100 * MB)
        assert 0 <= second["grant"]["free_bytes"] <= 100 * MB, "less than all where the first is not quite gone"
        await wait_until(lambda: not runs(first["pid"]))
        assert engine.stats().memory.used_bytes == 100 * MB


async def test_idle_ones_that_took_more_than_they_asked_for_are_ended_but_for_the_last(
    quick: Callable[..., Settings], runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(**budget(120 * MB))) as engine:
        first = await carry(engine, "a", reserve=10 * MB, hold=80 * MB)
        second = await carry(engine, "b", reserve=10 * MB, hold=150 * MB)
        await wait_until(lambda: not runs(first["pid"]))
        assert (await carry(engine, "b"))["pid"] == second["pid"], "the last one is too large by itself, and stays"


async def test_a_wait_for_memory_can_be_cancelled_at_once(quick: Callable[..., Settings], gate: Path) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine, busy(engine, "a", gate, reserve=700 * MB):
        async with engine.call("carry", {"item": "b", "reserve": 500 * MB}, timeout_s=LIMIT_S) as call:
            async for event in call:
                if isinstance(event, Progress) and event.message.startswith("waiting for memory"):
                    break
            call.cancel()
            assert (await failure_of(call.collect())).code is Code.CANCELLED
        assert engine.stats().memory.waiting == 0
        assert (await carry(engine, "b", reserve=100 * MB))["loads"] == 1


async def test_a_process_that_dies_while_it_waits_is_forgotten(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine, busy(engine, "a", gate, reserve=700 * MB):
        call = asyncio.create_task(carry(engine, "b", reserve=500 * MB))
        await wait_until(lambda: engine.stats().memory.waiting)
        dying = next(one for one in engine.pool.sessions if one.key.instance == '{"item":"b"}')
        assert dying.process is not None
        dying.process.kill()
        assert (await failure_of(call)).code is Code.CARTRIDGE_DIED
        assert engine.stats().memory.waiting == 0


async def test_a_session_that_is_always_busy_yields_to_who_waits_for_its_memory(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        order: list[str] = []

        async def turn(item: str, name: str, **arguments: Any) -> None:
            await carry(engine, item, **arguments)
            order.append(name)

        async with busy(engine, "a", gate, reserve=700 * MB) as first:
            other = asyncio.create_task(turn("b", "other", reserve=500 * MB))
            await wait_until(lambda: engine.stats().memory.waiting)
            late = [asyncio.create_task(turn("a", f"late {number}", reserve=700 * MB)) for number in range(2)]
            lift(gate)
            await first.collect()
        await asyncio.gather(other, *late)
        assert order == ["other", "late 0", "late 1"]


async def test_memory_that_the_own_chain_holds_is_a_deadlock_at_once(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        loop = asyncio.get_running_loop()
        await carry(engine, "a", reserve=700 * MB)
        began = loop.time()
        error = await failure_of(carry(engine, "a", peer={"item": "b", "reserve": 500 * MB}))
        assert error.code is Code.PEER_DEADLOCK
        assert error.details["chain"] == [
            "carry on ballast",
            "carry on ballast",
            'reserve-memory for ballast[{"item":"b"}]',
        ]
        assert loop.time() - began < 10.0  # at once, and not by its time limit
        assert (await carry(engine, "a", peer={"item": "b", "reserve": 300 * MB}))["item"] == "a"


async def test_a_peer_call_to_one_that_waits_for_the_callers_memory_is_a_deadlock_at_once(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        holding = asyncio.create_task(carry(engine, "a", reserve=700 * MB, gate=gate, peer={"item": "b"}))
        await wait_until(lambda: engine.stats().memory.used_bytes >= 700 * MB)
        waiting = asyncio.create_task(carry(engine, "b", reserve=500 * MB))
        await wait_until(lambda: engine.stats().memory.waiting)
        lift(gate)
        assert (await failure_of(holding)).code is Code.PEER_DEADLOCK
        assert (await waiting)["grant"]["granted_bytes"] == 500 * MB


async def test_two_that_load_and_wait_for_each_other_do_not_hang(quick: Callable[..., Settings]) -> None:
    """Each holds what a Python takes, and wants all but a little of the budget: one is refused, the other gets on."""
    async with Engine(quick(**budget(100 * MB, wait_s=60))) as engine:
        await asyncio.gather(*(engine.load("cap:carry", {"item": item}, timeout_s=LIMIT_S) for item in "ab"))
        calls = [carry(engine, item, reserve=95 * MB) for item in "ab"]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, CartdeckError)]
        assert [one.code for one in refused] == [Code.INSUFFICIENT_MEMORY]
        assert "wait for what this one holds" in str(refused[0])
        assert [one["grant"]["granted_bytes"] for one in outcomes if isinstance(one, dict)] == [95 * MB]


async def test_a_call_that_comes_while_another_waits_for_memory_waits_behind_it(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], runs: Callable[[int], bool], gate: Path
) -> None:
    async with Engine(quick(**budget(100 * MB))) as engine:
        async with busy(engine, "x", gate, reserve=50 * MB):
            first = asyncio.create_task(carry(engine, "a", reserve=95 * MB))
            await wait_until(lambda: engine.stats().memory.waiting)
            second = asyncio.create_task(carry(engine, "b", reserve=95 * MB))
            await asyncio.sleep(0)
        assert (await second)["grant"]["granted_bytes"] == 95 * MB
        assert first.done()
        assert not runs((await first)["pid"])


async def test_a_small_one_behind_a_large_one_goes_on_so_that_the_large_one_can(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        blocker = asyncio.create_task(
            carry(engine, "a", reserve=600 * MB, gate=gate, peer={"item": "c", "reserve": 100 * MB})
        )
        await wait_until(lambda: engine.stats().memory.used_bytes >= 600 * MB)
        large = asyncio.create_task(carry(engine, "b", reserve=900 * MB))
        await wait_until(lambda: engine.stats().memory.waiting)
        lift(gate)
        assert (await blocker)["item"] == "a"
        assert (await large)["grant"]["granted_bytes"] == 900 * MB


async def test_a_load_that_runs_out_of_memory_is_tried_again_without_the_idle_ones(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(**budget(0))) as engine:
        rival = (await carry(engine, "a"))["pid"]
        told, record = await load_and_tell(engine, "b", hold=100 * MB, rival=rival, word="x" * 100_000)
        assert not runs(rival)
        assert record["loads"] == 2
        assert record["word"] == "x" * 100_000
        said = "out of memory: another instance is ended to make room, then it is tried again"
        assert said in [one.message for one in told]
        fractions = [one.fraction for one in told if one.fraction is not None]
        assert fractions == sorted(fractions)


async def test_a_peer_call_is_tried_again_too(quick: Callable[..., Settings], runs: Callable[[int], bool]) -> None:
    async with Engine(quick(**budget(0))) as engine:
        rival = (await carry(engine, "a"))["pid"]
        await carry(engine, "c", peer={"item": "b", "hold": 100 * MB, "rival": rival})
        assert not runs(rival)


async def test_without_anybody_to_evict_or_after_a_second_failure_the_error_is_told(
    quick: Callable[..., Settings], gate: Path
) -> None:
    async with Engine(quick(**budget(0))) as engine:
        async with busy(engine, "a", gate):
            rival = next(one.process.pid for one in engine.pool.sessions)
            error = await failure_of(carry(engine, "b", hold=100 * MB, rival=rival))
            assert (error.code, error.phase) == (Code.OUT_OF_MEMORY, "load")
            assert error.details["tried_again"] is False
            await carry(engine, "c")
            error = await failure_of(carry(engine, "b", hold=100 * MB, rival=rival))
            assert (error.code, error.details["tried_again"]) == (Code.OUT_OF_MEMORY, True)
            assert sorted(one.key.instance for one in engine.pool.sessions) == ['{"item":"a"}', '{"item":"b"}']
        assert (await carry(engine, "b"))["loads"] == 4


async def test_a_call_whose_arguments_are_used_up_is_not_tried_again(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    def words() -> Iterator[str]:
        yield "once"

    async with Engine(quick(**budget(0))) as engine:
        rival = (await carry(engine, "a"))["pid"]
        error = await failure_of(carry(engine, "b", hold=100 * MB, rival=rival, word=words()))
        assert error.code is Code.OUT_OF_MEMORY
        assert runs(rival)


async def test_a_call_that_waits_for_its_second_try_can_be_cancelled(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(**budget(0))) as engine:
        rival = (await carry(engine, "a"))["pid"]
        arguments = {"item": "b", "hold": 100 * MB, "rival": rival}
        async with engine.call("carry", arguments, timeout_s=LIMIT_S) as call:
            async for event in call:
                if isinstance(event, Progress) and event.message.startswith("out of memory"):
                    break
            call.cancel()
            assert (await failure_of(call.collect())).code is Code.CANCELLED
        assert (await carry(engine, "b"))["loads"] == 2


async def test_the_engine_closes_while_calls_wait_for_memory_and_for_a_second_try(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], children: Callable[[], list[int]], gate: Path
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        blocker = asyncio.create_task(carry(engine, "a", reserve=700 * MB, gate=gate))
        await wait_until(lambda: engine.stats().memory.used_bytes >= 700 * MB)
        waiting = asyncio.create_task(carry(engine, "b", reserve=500 * MB))
        await wait_until(lambda: engine.stats().memory.waiting)
    assert children() == []
    assert [(await failure_of(call)).code for call in (blocker, waiting)] == [Code.ABORTED] * 2


async def test_what_was_asked_for_and_given_up_in_one_breath_is_not_granted(
    quick: Callable[..., Settings], gate: Path
) -> None:
    wavering = {"item": "a", "reserve": 800 * MB, "withdraws": True, "gate": gate}
    settings = quick(**budget(1000 * MB, wait_s=0.2))
    async with Engine(settings) as engine, engine.call("waver", wavering, timeout_s=LIMIT_S) as call:
        await told_until(call, "inference")
        assert (await carry(engine, "b", reserve=800 * MB))["grant"]["granted_bytes"] == 800 * MB
        lift(gate)
        assert json.loads((await call.collect()).data) == ["CANCELLED"]


async def test_a_process_waits_for_memory_no_more_often_than_it_takes_calls(
    quick: Callable[..., Settings], gate: Path, wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine, busy(engine, "a", gate, reserve=700 * MB):
        asked = {"item": "b", "reserve": 600 * MB, "times": 500}
        asking = asyncio.create_task(engine.run("waver", asked, timeout_s=LIMIT_S))
        await wait_until(lambda: engine.stats().memory.waiting)
        assert engine.stats().memory.waiting == 1
        lift(gate)
        first, *others = json.loads((await asking).data)
        assert first["granted_bytes"] == 600 * MB
        assert others == ["QUEUE_FULL"] * 499


async def test_callers_cannot_ask_and_wrong_questions_are_refused(quick: Callable[..., Settings], shelf: None) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        assert (await failure_of(engine.run("reserve-memory", {"bytes": 1}))).code is Code.NO_SUCH_CAP
        for arguments, code in (
            ({"bytes": -1}, Code.BAD_ARGUMENT),
            ({"bytes": "much"}, Code.BAD_ARGUMENT),
            ({}, Code.MISSING_ARGUMENT),
            ({"bytes": 1, "more": 2}, Code.UNKNOWN_ARGUMENT),
        ):
            peer = {"item": "a", "cap": "cap:reserve-memory", "arguments": arguments}
            assert (await failure_of(engine.run("pass-on", peer, timeout_s=LIMIT_S))).code is code
        peer = {"item": "a", "cap": "cap:reserve-memory", "arguments": {"bytes": 5 * MB}}
        answer = await engine.run("pass-on", peer, timeout_s=LIMIT_S)
        assert json.loads(answer.data)["granted_bytes"] == 5 * MB


async def test_what_is_reserved_and_measured_is_shown(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(**budget(1000 * MB))) as engine:
        await carry(engine, "a", reserve=700 * MB)
        stats = engine.stats()
        (session,) = stats.sessions
        assert session.reserved_bytes == 700 * MB
        assert session.rss_bytes is not None
        assert 0 < session.rss_bytes < 700 * MB
        assert stats.to_plain()["memory"] == {"budget_bytes": 1000 * MB, "used_bytes": 700 * MB, "waiting": 0}
        status = next(one for one in engine.cartridges() if one.cartridge.name == "ballast").sessions[0]
        assert status.reserved_bytes == 700 * MB
        await carry(engine, "a")


@pytest.mark.parametrize("seed", [3, 4])
async def test_whatever_is_asked_for_at_once_each_call_ends_and_no_more_is_granted_than_there_is(
    quick: Callable[..., Settings], seed: int
) -> None:
    dice = random.Random(seed)
    settings = quick(**budget(1000 * MB, wait_s=1.0), instances={"limit": 5})
    expected = {Code.INSUFFICIENT_MEMORY, Code.PEER_DEADLOCK, Code.PEER_CYCLE, Code.CANCELLED, Code.CARTRIDGE_DIED}
    most = 0

    def arguments(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {
            "item": dice.choice("abcdefg"),
            "reserve": dice.choice([0, 100, 300, 500, 900, 1100]) * MB,
        }
        return {**made, "peer": arguments(depth + 1)} if depth < 2 and dice.random() < 0.3 else made

    async def one(engine: Engine, chosen: dict[str, Any], patience_s: float | None) -> Code | None:
        nonlocal most
        try:
            async with engine.call("carry", chosen, timeout_s=LIMIT_S) as call:
                if patience_s is not None:
                    asyncio.get_running_loop().call_later(patience_s, call.cancel)
                await call.collect()
        except CartdeckError as error:
            return error.code
        finally:
            most = max(most, sum(one.reserved_bytes for one in engine.stats().sessions))
        return None

    async with Engine(settings) as engine:
        for _ in range(4):
            plans = [(arguments(0), dice.choice([None, None, None, dice.random()])) for _ in range(6)]
            calls = [asyncio.create_task(one(engine, *plan)) for plan in plans]
            await asyncio.sleep(dice.random())
            ready = [one for one in engine.pool.sessions if one.health is not None]
            victim = dice.choice([*ready, None])
            if victim is not None and victim.process is not None:
                victim.process.kill()
            outcomes = await asyncio.gather(*calls)
            assert {code for code in outcomes if code is not None} <= expected, outcomes
        assert most <= 1000 * MB
        assert engine.stats().memory.waiting == 0
        assert (await carry(engine, "z", reserve=1000 * MB))["grant"]["free_bytes"] == 0
        assert [one.key.instance for one in engine.pool.sessions] == ['{"item":"z"}']
