"""Plans for callers that do not await: the same names, from any thread, and Ctrl-C."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cartdeck
from cartdeck import CartdeckError, Code, Settings
from cartdeck.plans import PlanEnded, StepEnded, StepState

pytestmark = pytest.mark.usefixtures("nothing_left")
CHAIN = "words -> echo -> copied\ncopied -> sink -> size"


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """What a process keeps once is no leak of an engine's."""
    with cartdeck.open(Settings()):
        pass


def test_a_plan_blocks_and_gives_events_and_a_result(quick: Callable[..., Settings], tmp_path: Path) -> None:
    with cartdeck.open(quick()) as engine:
        with engine.plan(CHAIN, {"words": "abc"}) as run:
            events = list(run)
        assert isinstance(events[-1], PlanEnded)
        assert [event.step for event in events if isinstance(event, StepEnded)] == ["echo", "sink"]
        assert run.result.only.json()["bytes"] == 3
        assert run.error is None
        with engine.plan(CHAIN, {"words": iter(["a", "bc"])}) as run:
            assert run.collect().only.json()["bytes"] == 3
        for state in (StepState.DONE, StepState.REUSED):
            result = engine.run_plan(CHAIN, {"words": "abc"}, state=tmp_path / "state")
            assert {report.state for report in result.steps.values()} == {state}


def test_a_fault_is_told_before_anything_starts_and_errors_arrive_bare(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        with pytest.raises(CartdeckError) as caught:
            engine.plan("x -> y")
        with pytest.raises(RuntimeError, match=r"use `with engine\.plan"):
            engine.plan(CHAIN, {"words": "abc"}).collect()
        assert caught.value.code is Code.BAD_PLAN
        with pytest.raises(CartdeckError, match="not given"):
            engine.run_plan(CHAIN)
        assert all(not one.sessions for one in engine.cartridges())
        with engine.plan("action -> misbehave -> x", {"action": "raise"}) as run, pytest.raises(CartdeckError):
            list(run)
        assert run.report.steps["misbehave"].state is StepState.FAILED
    with pytest.raises(CartdeckError) as caught:
        engine.run_plan(CHAIN, {"words": "a"})
    assert caught.value.code is Code.ABORTED


def test_leaving_a_plan_early_and_cancelling_it_end_its_calls(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        with engine.plan("() -> work -> x\nwork.steps = 100000") as run:
            next(iter(run))
        assert run.report.steps["work"].state is StepState.CANCELLED
        with engine.plan("() -> work -> x\nwork.steps = 100000") as run:
            run.cancel("no more of it")
            with pytest.raises(CartdeckError, match="no more of it") as caught:
                run.collect()
        assert caught.value.code is Code.CANCELLED
        assert engine.run("echo", {"data": "on"}, timeout_s=20).text == "on"
    run.cancel()


INTERRUPTED = """
import os, signal, threading, time
import cartdeck
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that puts its jobs behind makes them ignore it
with cartdeck.open() as engine:
    try:
        with engine.plan("() -> work -> x\\nwork.steps = 100000") as run:
            for event in run:
                if type(event).__name__ == "StepProgress":
                    os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("interrupted", run.report.steps["work"].state, run.error.code_name)
    try:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        engine.run_plan("() -> work -> x\\nwork.steps = 100000")
    except KeyboardInterrupt:
        print("interrupted")
    print(engine.run("echo", {"data": "on"}).text)
    end_s = time.monotonic() + 20  # the plan is told at once, the cartridge ends its request a turn later
    while any(one.open_requests for cartridge in engine.cartridges() for one in cartridge.sessions):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    print("idle")
"""


def test_an_interrupt_cancels_the_plan_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.splitlines() == ["interrupted cancelled CANCELLED", "interrupted", "on", "idle"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
