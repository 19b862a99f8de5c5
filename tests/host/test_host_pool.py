"""Sessions by key: places, queues, eviction, backoff, unload."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Engine, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left", "shelf")]


async def hold(engine: Engine, item: str, seconds: float = 0.0) -> int:
    """The process that holds the item."""
    result = await engine.run("hold", {"item": item, "seconds": seconds}, timeout_s=20)
    answer = json.loads(result.data)
    assert answer["item"] == item
    return int(answer["pid"])


async def failure_of(work: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await work
    return caught.value


@asynccontextmanager
async def held(engine: Engine, item: str) -> AsyncIterator[Call]:
    """A call that has its process, and keeps it busy until it is cancelled or left."""
    async with engine.call("hold", {"item": item, "seconds": 600}, timeout_s=60) as call:
        async for event in call:
            if isinstance(event, Progress) and event.phase == "holding":
                break
        yield call


async def test_one_instance_is_one_process(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        first = await hold(engine, "a")
        assert await hold(engine, "a") == first
        assert await hold(engine, "b") != first
        default = json.loads((await engine.run("hold", timeout_s=20)).data)
        assert await hold(engine, "nothing") == default["pid"], "a default that is spelled out is the same instance"
        assert len(engine.pool.sessions) == 3


async def test_calls_of_one_instance_wait_for_one_another_and_are_told(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        pid = await hold(engine, "a")
        async with held(engine, "a") as first:
            second = asyncio.create_task(hold(engine, "a", 0.05))
            async with engine.call("hold", {"item": "a"}, timeout_s=20) as call:
                told: list[Progress] = []
                async for event in call:
                    if isinstance(event, Progress):
                        told.append(event)
                        first.cancel()
        queued = [event.message for event in told if event.phase == "queued"]
        assert queued[0] in ("waiting for shelf, 1 before it", "waiting for shelf, next in line")
        fractions = [event.fraction for event in told if event.fraction is not None]
        assert fractions == sorted(fractions)
        assert await second == json.loads(call.result.data)["pid"] == pid


async def test_a_full_queue_refuses_with_a_hint(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"queue": 1})) as engine:
        async with held(engine, "a"):
            waiting = asyncio.create_task(hold(engine, "a"))
            await asyncio.sleep(0.05)
            error = await failure_of(hold(engine, "a"))
            assert error.code is Code.QUEUE_FULL
            assert error.details["retry_after_s"] > 0
        await waiting


async def test_the_idle_one_makes_room_and_its_process_is_gone_before_the_next_starts(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(instances={"limit": 2})) as engine:
        oldest = await hold(engine, "a")
        newer = await hold(engine, "b")
        await hold(engine, "a")
        await hold(engine, "c")
        assert not runs(newer)
        assert runs(oldest)


async def test_one_whose_calls_all_failed_makes_room_before_one_that_served(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async def fail(item: str) -> None:
        await failure_of(engine.run("pass-on", {"item": item, "cap": "cap:nobody;offers", "arguments": {}}))

    async with Engine(quick(instances={"limit": 2})) as engine:
        served = await hold(engine, "a")
        await fail("b")  # used last, and of no use to anybody
        await fail("c")
        await fail("c")
        assert runs(served)
        later = await hold(engine, "c")  # of the same key: now it served
        await fail("c")
        await hold(engine, "d")
        assert (runs(served), runs(later)) == (False, True)


async def test_a_busy_one_is_not_evicted_and_the_waiting_call_is_told(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        pid = await hold(engine, "a")
        busy = asyncio.create_task(hold(engine, "a", 0.4))
        await asyncio.sleep(0.05)
        async with engine.call("hold", {"item": "b"}, timeout_s=20) as call:
            phases = [event.phase async for event in call if isinstance(event, Progress)]
        assert busy.done()
        assert await busy == pid
        assert phases[:2] == ["queued", "starting"] or phases[0] == "starting"
        assert not runs(pid)


async def test_a_session_that_is_always_busy_yields_to_who_came_first(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        await hold(engine, "a")
        order: list[str] = []

        async def turn(item: str, name: str) -> None:
            await hold(engine, item, 0.05)
            order.append(name)

        tasks = [asyncio.create_task(turn("a", "first"))]
        await asyncio.sleep(0.02)
        tasks.append(asyncio.create_task(turn("b", "other")))
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(turn("a", f"late {number}")) for number in range(3)]
        await asyncio.gather(*tasks)
        assert order[:2] == ["first", "other"]
        assert sorted(order[2:]) == ["late 0", "late 1", "late 2"]


async def test_an_instance_that_was_loaded_and_never_used_makes_room_too(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 2})) as engine:
        await asyncio.gather(*(engine.load("cap:hold", {"item": item}, timeout_s=20) for item in "abcd"))
        assert len(engine.pool.sessions) == 2
        assert await hold(engine, "a")


async def test_who_needs_no_place_does_not_wait_for_one(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        await engine.run("echo", {"data": b""})
        async with held(engine, "a") as holding:
            waiting = asyncio.create_task(hold(engine, "b"))
            await asyncio.sleep(0)
            for _ in range(10):
                await engine.run("echo", {"data": b"on"}, timeout_s=30)
            assert not holding.is_answered
            assert not waiting.done()
        await waiting


async def test_those_who_yielded_go_on_when_the_place_was_found(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 2})) as engine:
        await asyncio.gather(hold(engine, "a"), hold(engine, "b"))
        busy = [asyncio.create_task(hold(engine, item, seconds)) for item, seconds in (("a", 0.6), ("b", 0.2))]
        await asyncio.sleep(0.05)
        placeless = asyncio.create_task(hold(engine, "c", 0.05))
        await asyncio.sleep(0)
        yielding = [asyncio.create_task(hold(engine, item)) for item in "aabb"]
        async with asyncio.timeout(60):
            await asyncio.gather(*busy, placeless, *yielding)


async def test_a_call_that_waits_can_be_cancelled_at_once(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        async with held(engine, "a"):
            for item in ("a", "b"):
                async with engine.call("hold", {"item": item}) as call:
                    call.cancel("no patience")
                    assert (await failure_of(call.collect())).code is Code.CANCELLED
            error = await failure_of(engine.run("hold", {"item": "b"}, timeout_s=0.1))
            assert (error.code, error.phase) == (Code.TIMED_OUT, "queued")
        assert [door.key.instance for door in engine.pool.doors.values()] == ['{"item":"a"}']


async def test_an_instance_that_nobody_uses_is_unloaded_when_the_settings_say_so(
    quick: Callable[..., Settings], runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(instances={"idle_s": 0.3})) as engine:
        await engine.run("echo", {"data": b""}, timeout_s=30)
        pid = await hold(engine, "a")
        await wait_until(lambda: not runs(pid))
        assert [session.key.cartridge for session in engine.pool.sessions] == ["echo"]


async def test_load_starts_and_unload_ends_behind_the_open_calls(
    quick: Callable[..., Settings], runs: Callable[[int], bool]
) -> None:
    async with Engine(quick()) as engine:
        await engine.load("cap:hold", {"item": "a"}, timeout_s=20)
        session = engine.pool.sessions[0]
        assert session.process is not None
        pid = session.process.pid
        call = asyncio.create_task(hold(engine, "a", 0.3))
        await asyncio.sleep(0.05)
        assert await engine.unload("cap:hold", {"item": "a"}) == 1
        assert call.done()
        assert await call == pid
        assert not runs(pid)
        await engine.load("echo")
        await engine.load("shelf", {"item": "b"})
        assert await engine.unload("echo") == 1
        assert await engine.unload() == 1
        assert await engine.unload() == 0


async def test_an_unload_whose_caller_gives_up_opens_the_session_again(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        pid = await hold(engine, "a")
        async with held(engine, "a"):
            unloads = [asyncio.create_task(engine.unload("shelf")) for _ in range(2)]
            await asyncio.sleep(0)
            late = asyncio.create_task(hold(engine, "a"))
            await asyncio.sleep(0)
            assert engine.pool.sessions[0].is_closed_to_new
            unloads[0].cancel()
            await asyncio.wait([unloads[0]])
            assert engine.pool.sessions[0].is_closed_to_new, "the other one still waits for its end"
            unloads[1].cancel()
        assert await late == pid
        assert await engine.unload() == 1


async def test_no_process_starts_for_who_waits_for_a_place_when_the_engine_closes(
    quick: Callable[..., Settings], children: Callable[[], list[int]]
) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        await hold(engine, "a")
        calls = [asyncio.create_task(hold(engine, item, 30.0)) for item in "ab"]
        await asyncio.sleep(0.1)
    assert children() == []
    assert engine.pool.sessions == []
    assert [(await failure_of(call)).code for call in calls] == [Code.ABORTED] * 2


async def test_unload_while_it_starts_waits_for_the_start(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        loading = asyncio.create_task(engine.load("cap:hold", {"item": "a"}))
        await asyncio.sleep(0)
        await engine.unload("cap:hold", {"item": "a"})
        await loading


async def test_a_start_that_nobody_waits_for_is_broken_off(
    quick: Callable[..., Settings], wait_until: Callable[..., Any], children: Callable[[], list[int]]
) -> None:
    async with Engine(quick()) as engine:
        for _ in range(10):
            call = engine.call("hold", {"item": "a"})
            await call.__aenter__()
            await asyncio.sleep(0.01)
            await call.__aexit__(None, None, None)
        await wait_until(lambda: not engine.pool.doors and not children())
