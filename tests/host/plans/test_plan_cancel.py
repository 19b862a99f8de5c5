"""Cancel: whenever it comes, every call of the plan ends, and nothing is left."""

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine, Settings
from cartdeck.plans import PlanEnded, PlanRun, StepEnded, StepProgress, StepState

pytestmark = pytest.mark.anyio

TIMES = int(os.environ.get("CARTDECK_CANCELS", "20"))
"""Each at a random time; CARTDECK_CANCELS asks for more."""
BUSY = """
() -> emit -> x
emit.count = 400
emit.interval = 0.002
x -> through -> y
through echo
y -> sink -> z
() -> emit-items -> xs
emit-items.count = 500
xs -> each -> ys
each echo
ys -> sum -> zs
sum sink
() -> work -> w
work.steps = 50
work.seconds = 0.02
() -> relay -> r
relay.cap = "cap:work"
relay.arguments = {"steps": 100}
relay.argument = ""
"""


def is_idle(engine: Engine) -> bool:
    return all(session.open_requests == 0 for one in engine.cartridges() for session in one.sessions)


async def cancelled_after(engine: Engine, delay_s: float) -> list[Any]:
    events: list[Any] = []
    async with PlanRun(engine, BUSY) as run:
        asyncio.get_running_loop().call_later(delay_s, run.cancel)
        try:
            async for event in run:
                events.append(event)
        except CartdeckError as error:
            assert error.code is Code.CANCELLED  # noqa: PT017  # a plan may also come to its end before
    return events


async def test_a_cancel_reaches_every_step_and_its_peers(engine: Engine, wait_until: Callable[..., Any]) -> None:
    async with PlanRun(engine, BUSY) as run:
        seen: set[str] = set()
        while "work" not in seen or "relay" not in seen:
            seen |= {event.step for event in await run.next_events() if isinstance(event, StepProgress)}
        began = time.monotonic()
        run.cancel("enough")
        with pytest.raises(CartdeckError, match="the plan was cancelled: enough"):
            await run.collect()
        assert time.monotonic() - began < 15
        states = {name: report.state for name, report in run.report.steps.items()}
    assert states["work"] is states["relay"] is StepState.CANCELLED
    assert all(state.is_final for state in states.values())
    await wait_until(lambda: is_idle(engine))


@pytest.mark.timeout(600)
async def test_at_any_time_it_leaves_no_call_no_task_and_no_file(
    engine: Engine, open_files: Callable[[], int], wait_until: Callable[..., Any]
) -> None:
    await cancelled_after(engine, 0.2)  # the cartridge runs from now on
    gc.collect()
    chance = random.Random(7)
    before, tasks = open_files(), len(asyncio.all_tasks())
    for _ in range(TIMES):
        events = await cancelled_after(engine, chance.random() * 0.3)
        ended = [event.step for event in events if isinstance(event, StepEnded)]
        assert sorted(ended) == sorted(set(ended))
        assert [type(event) for event in events].count(PlanEnded) == 1
        assert isinstance(events[-1], PlanEnded)
    gc.collect()
    await wait_until(lambda: is_idle(engine))  # the plan is told at once, each cartridge ends its request a turn later
    await wait_until(lambda: len(asyncio.all_tasks()) <= tasks)  # those that fed arguments end a turn later
    await wait_until(lambda: open_files() <= before)


async def test_leaving_the_context_cancels(engine: Engine) -> None:
    async with PlanRun(engine, BUSY) as run:
        await run.next_events()
    assert all(report.state.is_final for report in run.report.steps.values())
    assert run.error is not None
    assert run.error.code is Code.CANCELLED


async def test_a_caller_that_is_cancelled_cancels_the_plan(engine: Engine) -> None:
    runs: list[PlanRun] = []

    async def caller() -> None:
        async with PlanRun(engine, BUSY) as run:
            runs.append(run)
            await run.collect()

    task = asyncio.get_running_loop().create_task(caller())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(report.state.is_final for report in runs[0].report.steps.values())


async def test_a_plan_that_waits_for_its_input_can_be_cancelled(engine: Engine) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()
        yield b""

    async with PlanRun(engine, "x -> echo -> y", {"x": never()}) as run:
        run.cancel()
        with pytest.raises(CartdeckError):
            await run.collect()
    assert run.report.steps["echo"].state is StepState.CANCELLED


async def test_a_cartridge_that_ignores_the_cancel_does_not_hold_up_the_plan(
    quick: Callable[..., Settings], nothing_left: None
) -> None:
    plan = "() -> misbehave -> x\nmisbehave.action = ignore-cancel\nmisbehave.seconds = 60"
    async with Engine(quick()) as engine, PlanRun(engine, plan) as run:
        while not any(getattr(event, "message", "") == "ignoring cancels" for event in await run.next_events()):
            pass
        began = time.monotonic()
        run.cancel()
        with pytest.raises(CartdeckError):
            await run.collect()
        assert time.monotonic() - began < 20


@pytest.fixture
def open_files() -> Callable[[], int]:
    return lambda: sum(1 for _ in Path("/proc/self/fd").iterdir())
