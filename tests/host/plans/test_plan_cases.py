"""What broke public systems of this kind, as small cases: cycles, branches that fail, cancels, progress."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine
from cartdeck.plans import Absent, PlanRun, StepEnded, StepState, run_plan

pytestmark = pytest.mark.anyio
Told = Callable[..., Any]


@pytest.mark.parametrize(
    "text",
    [
        "x -> a -> y\na echo\ny -> b -> x\nb echo",
        "x -> echo -> x",
        "\n".join([f"s{i} echo\nv{i} -> s{i} -> v{(i + 1) % 1000}" for i in range(1000)]),
    ],
)
async def test_a_cycle_is_refused_and_nothing_is_spawned(engine: Engine, text: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        await run_plan(engine, text)
    assert caught.value.code is Code.PLAN_CYCLE
    assert len(caught.value.details["path"]) > 1
    assert engine.pool.sessions == []


async def test_a_cap_that_calls_itself_through_its_peers_is_told_in_time(engine: Engine) -> None:
    plan = '() -> relay -> x\nrelay.cap = "cap:relay"\nrelay.argument = ""\nrelay.arguments = {"cap": "cap:echo"}'
    await engine.run("echo", {"data": "x"})
    began = time.monotonic()
    with pytest.raises(CartdeckError) as caught:
        await run_plan(engine, plan)
    assert caught.value.code is Code.PEER_CYCLE
    assert time.monotonic() - began < 15


FAN = ["descriptors", "descriptors", "descriptors", "raise", "descriptors"]


@pytest.mark.parametrize("on_error", ["fail", "absent"])
async def test_of_five_branches_one_fails(engine: Engine, told: Told, on_error: str) -> None:
    actions = ["stall" if on_error == "fail" else "descriptors"] * 5
    actions[2] = "raise"
    branches = "\n".join(
        f"() -> b{i} -> v{i}\nb{i} misbehave\nb{i}.action = {action}" for i, action in enumerate(actions)
    )
    began = time.monotonic()
    run, events = await told(engine, branches, on_error=on_error)
    assert time.monotonic() - began < 20
    states = {event.step: event.state for event in events if isinstance(event, StepEnded)}
    assert states["b2"] is StepState.FAILED
    others = {states[f"b{i}"] for i in (0, 1, 3, 4)}
    if on_error == "fail":
        assert others == {StepState.CANCELLED}
        assert run.error.details["step"] == "b2"
    else:
        assert others == {StepState.DONE}
        assert [one.step for one in run.result.missing] == ["b2"]
        assert run.result.output("v2").absent.error.code is Code.HANDLER_FAILED


async def test_of_five_items_one_fails(engine: Engine, told: Told) -> None:
    run, _ = await told(engine, "action -> misbehave -> y", {"action": FAN}, on_error="absent")
    items = run.result.only.items
    assert [isinstance(one, Absent) for one in items] == [False, False, False, True, False]
    assert items[3].error.code is Code.HANDLER_FAILED


async def test_a_cancel_reaches_a_peer_call(engine: Engine, wait_until: Callable[..., Any]) -> None:
    plan = '() -> relay -> x\nrelay.cap = "cap:misbehave"\nrelay.argument = ""\nrelay.arguments = {"action": "stall"}'
    async with PlanRun(engine, plan) as run:
        while not any(getattr(event, "phase", "") == "stalling" for event in await run.next_events()):
            pass
        began = time.monotonic()
        run.cancel()
        with pytest.raises(CartdeckError):
            await run.collect()
        assert time.monotonic() - began < 15
    await wait_until(
        lambda: all(session.open_requests == 0 for one in engine.cartridges() for session in one.sessions), limit_s=20
    )


async def test_one_slow_and_nine_fast_one_of_them_tried_again(milled: Engine, told: Told) -> None:
    lines = [f"x -> f{i} -> y{i}\nf{i} shout" for i in range(8)]
    lines.append("x -> again -> z\nagain flaky\nagain {retry=2}")
    lines.append("() -> slow -> w\nslow work\nslow.seconds = 0.03")
    _, events = await told(milled, "\n".join(lines), {"x": "ten"})
    overall = [event.overall for event in events if hasattr(event, "overall")]
    assert overall == sorted(overall)
    assert overall[-1] == 1.0
    assert all(one < 1 for one in overall[:-1])
