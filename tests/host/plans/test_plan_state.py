"""Kept results: a second run does only what changed, and one that was killed goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine
from cartdeck.plans import StepState, run_plan

pytestmark = pytest.mark.anyio
Told = Callable[..., Any]
PLAN = "page -> split -> lines\nlines -> shout -> loud\nloud -> join -> all\nall -> sink -> sum"


def states(result: Any) -> dict[str, StepState]:
    return {name: report.state for name, report in result.steps.items()}


async def test_a_second_run_calls_nothing(milled: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = await run_plan(milled, PLAN, {"page": "a b c"}, state=state)
    again = await run_plan(milled, PLAN, {"page": "a b c"}, state=state)
    assert again.only.json() == first.only.json()
    assert set(states(again).values()) == {StepState.REUSED}
    assert sum(report.tries for report in again.steps.values()) == 0
    assert {name: report.provenance for name, report in again.steps.items()} == {
        name: report.provenance for name, report in first.steps.items()
    }


async def test_only_what_changed_is_done(milled: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    await run_plan(milled, PLAN, {"page": "a b c"}, state=state)
    changed = await run_plan(milled, PLAN, {"page": "a X c"}, state=state)
    assert {name: report.tries for name, report in changed.steps.items()} == {
        "split": 1, "shout": 1, "join": 1, "sink": 1,
    }  # fmt: skip
    assert changed.steps["shout"].reused == 2
    same_words = await run_plan(milled, PLAN, {"page": "a  b  c"}, state=state)  # other text, the same lines
    assert states(same_words)["split"] is StepState.DONE
    assert states(same_words)["join"] is StepState.REUSED


async def test_another_constant_or_another_plan_with_the_same_call(milled: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    await run_plan(milled, "x -> repeat -> y\nrepeat.times = 2", {"x": "a"}, state=state)
    other = await run_plan(milled, "x -> repeat -> y\nrepeat.times = 3", {"x": "a"}, state=state)
    assert other.only.text == "aaa"
    renamed = await run_plan(milled, "q -> r -> z\nr repeat\nr.times = 2", {"q": "a"}, state=state)
    assert states(renamed) == {"r": StepState.REUSED}
    assert renamed.only.text == "aa"


async def test_a_file_counts_by_what_is_in_it(milled: Engine, tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "file"
    file.write_text("one")
    await run_plan(milled, "x -> echo -> y", {"x": file}, state=state)
    assert states(await run_plan(milled, "x -> echo -> y", {"x": file}, state=state)) == {"echo": StepState.REUSED}
    file.write_text("two")
    result = await run_plan(milled, "x -> echo -> y", {"x": file}, state=state)
    assert (states(result), result.only.text) == ({"echo": StepState.DONE}, "two")


async def test_large_outputs_are_kept_whole(milled: Engine, tmp_path: Path) -> None:
    plan = "() -> emit -> x\nemit.count = 20\nx -> echo -> y"
    first = await run_plan(milled, plan, state=tmp_path / "state")
    again = await run_plan(milled, plan, state=tmp_path / "state")
    assert set(states(again).values()) == {StepState.REUSED}
    assert again.only.data == first.only.data
    assert len(again.only.data) == 20 * 256 * 1024


async def test_what_failed_is_not_kept_and_what_ended_before_is(milled: Engine, told: Told, tmp_path: Path) -> None:
    plan = "x -> shout -> y\ny -> flaky -> z\nflaky.failures = 1"
    run, _ = await told(milled, plan, {"x": "state"}, state=tmp_path / "state")
    assert run.error is not None
    result = await run_plan(milled, plan, {"x": "state"}, state=tmp_path / "state")
    assert states(result) == {"shout": StepState.REUSED, "flaky": StepState.DONE}


async def test_items_that_are_there_are_not_asked_for_again(milled: Engine, told: Told, tmp_path: Path) -> None:
    state = tmp_path / "state"
    plan = "x -> flaky -> y\nflaky.failures = 1\nflaky {on_error=absent}"
    run, _ = await told(milled, plan, {"x": ["p", "q"]}, state=state)
    assert len(run.result.missing) == 2
    result = await run_plan(milled, plan, {"x": ["p", "q", "r"]}, state=state)
    assert (result.steps["flaky"].tries, len(result.missing)) == (3, 1)
    result = await run_plan(milled, plan, {"x": ["p", "q", "r"]}, state=state)
    assert (result.steps["flaky"].tries, result.steps["flaky"].reused) == (1, 2)


KILLED = """
import asyncio, sys
from pathlib import Path
import cartdeck
from cartdeck.plans import PlanRun, ItemFailed, StepProgress

async def main():
    items = [f"{number}" for number in range(60)]
    plan = "x -> relay -> y\\nrelay.cap = \\"cap:work\\"\\nrelay.argument = \\"\\"\\n"
    plan += 'relay.arguments = {"steps": 1, "seconds": 0.05}\\nrelay {at_once=4}'
    async with cartdeck.Engine() as engine:
        async with PlanRun(engine, "data media:enc=utf-8;relayed\\n" + plan.replace("x ->", "data ->", 1),
                           {"data": items}, state=Path(sys.argv[1])) as run:
            async for event in run:
                if isinstance(event, StepProgress):
                    print(event.items_done, flush=True)
        report = run.result.steps["relay"]
        print("end", report.tries, report.reused, len(run.result.only.items), flush=True)

asyncio.run(main())
"""


@pytest.mark.timeout(180)
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 15:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    word, tries, reused, items = done.stdout.splitlines()[-1].split()
    assert (word, int(tries) + int(reused), int(items)) == ("end", 60, 60)
    assert int(reused) >= 15
    assert time.monotonic() - began < 100
