"""Cancel at each phase of a call: answered in time, peers cancelled too, the process and its other calls unharmed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cartdeck import Call, Code, Data, Engine, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left", "phases")]

IN_TIME_S = 10.0
CANCEL = {"call": {"cancel_s": 20.0, "abandon_s": 40.0}}
"""So long that an answer within `IN_TIME_S` is the cartridge's own."""


async def reached(call: Call, phase: str) -> None:
    """Read until the call is in the phase, and for the ones that stream until data comes."""
    wants_data = phase.startswith("decoding") or phase == "full"
    async for event in call:
        if isinstance(event, Data if wants_data else Progress) and (wants_data or event.phase == phase):
            return
    raise AssertionError(f"it never came to {phase}")


@pytest.mark.parametrize("phase", ["obtaining", "loading", "held-loading", "decoding", "decoding-in-worker", "full"])
async def test_a_cancel_in_a_phase_is_answered_by_the_cartridge_and_harms_no_other_call(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any, phase: str
) -> None:
    async with Engine(quick(**CANCEL)) as engine:
        neighbour = asyncio.create_task(engine.run("stay", {"phase": "loading", "seconds": 0.5}, timeout_s=30))
        async with engine.call("stay", {"phase": phase, "seconds": 20.0}, keep_bytes=0) as call:
            shown = "stalling" if phase == "obtaining" else phase
            async with asyncio.timeout(20):
                await reached(call, shown)
            if phase == "full":
                await wait_until(lambda: call.reader_since_s(engine.clock.now_s) is not None)
            sessions = list(engine.pool.sessions)
            call.cancel("enough")
            call.cancel("enough again")
            error = await failure_of(call.collect(), limit_s=IN_TIME_S)
            assert error.code is Code.CANCELLED
            assert "enough" in str(error)
            assert "again" not in str(error)
        await wait_until(lambda: sum(one.open_requests for one in sessions) <= 1, limit_s=IN_TIME_S)
        assert (await neighbour).text == "loaded"
        assert (await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=30)).text == "loaded"
        assert engine.pool.sessions == sessions


async def test_a_cancel_while_it_starts_is_answered_at_once(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any
) -> None:
    async with Engine(quick()) as engine:
        async with engine.call("stay", {"phase": "loading"}) as call:
            async for event in call:
                if isinstance(event, Progress) and event.phase == "starting":
                    break
            began = asyncio.get_running_loop().time()
            call.cancel()
            assert (await failure_of(call.collect())).code is Code.CANCELLED
            took_s = asyncio.get_running_loop().time() - began
            assert took_s < 5.0  # where this takes so long, a start takes longer
        await wait_until(lambda: not engine.pool.sessions, limit_s=IN_TIME_S)
        assert (await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=30)).text == "loaded"


async def test_a_cancel_while_the_arguments_are_not_taken_is_answered(
    quick: Callable[..., Settings], failure_of: Any
) -> None:
    async with Engine(quick(**CANCEL)) as engine:
        await engine.run("echo", {"data": b""}, timeout_s=30)
        sessions = list(engine.pool.sessions)
        sent = 0

        async def blocks() -> Any:
            nonlocal sent
            while True:
                sent += 1
                yield b"x" * 262_144

        async with engine.call("sink", {"data": blocks(), "interval": 60}) as call:
            before = -1
            while sent != before:  # until the windows are full
                before = sent
                await asyncio.sleep(0.1)
            call.cancel()
            assert (await failure_of(call.collect(), limit_s=IN_TIME_S)).code is Code.CANCELLED
        assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"
        assert engine.pool.sessions == sessions


async def test_a_coroutine_that_writes_tiny_items_lets_the_loop_turn(quick: Callable[..., Settings]) -> None:
    """It never has to wait for room; a CANCEL has to be heard all the same, so what it wrote leaves now and then."""
    async with Engine(quick()) as engine:
        await engine.load("echo", timeout_s=30)
        [session] = engine.pool.sessions
        before = session.traffic().received_frames
        result = await engine.run("emit-items", {"count": 200_000, "size": 1}, timeout_s=30)
        assert result.items == [b"x"] * 200_000
        assert session.traffic().received_frames - before >= 12, "a chunk for each turn"


async def test_200_streams_are_cancelled_at_once(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any
) -> None:
    async with Engine(quick(**CANCEL)) as engine:
        await engine.load("phases", timeout_s=30)
        [session] = engine.pool.sessions
        calls = [engine.call("stay", {"phase": "decoding"}, keep_bytes=0) for _ in range(200)]
        for call in calls:
            await call.__aenter__()
        neighbour = asyncio.create_task(engine.run("stay", {"phase": "loading", "seconds": 1.0}, timeout_s=20))
        async with asyncio.timeout(20):
            await asyncio.gather(*(reached(call, "decoding") for call in calls))
        for call in calls:
            call.cancel()
        errors = [await failure_of(call.collect(), limit_s=IN_TIME_S) for call in calls]
        assert {error.code for error in errors} == {Code.CANCELLED}
        assert (await neighbour).text == "loaded"
        await wait_until(lambda: session.open_requests == 0, limit_s=IN_TIME_S)
        assert engine.pool.sessions == [session]


async def test_a_close_does_not_wait_for_a_load_that_cannot_be_stopped(
    quick: Callable[..., Settings], failure_of: Any
) -> None:
    loop = asyncio.get_running_loop()
    async with Engine(quick()) as engine:
        call = engine.call("stay", {"phase": "held-loading"})
        await call.__aenter__()
        async with asyncio.timeout(20):
            await reached(call, "held-loading")
        began = loop.time()
    assert loop.time() - began < 10.0  # its stop ladder takes two seconds
    assert (await failure_of(call.collect())).code is Code.ABORTED


async def test_what_was_read_before_a_cancel_stays_and_a_cancel_after_the_end_is_nothing(
    quick: Callable[..., Settings],
) -> None:
    async with Engine(quick()) as engine, engine.call("echo", {"data": b"all of it"}) as call:
        result = await call.collect()
        call.cancel()
        assert call.result.data == result.data == b"all of it"
