"""Failures: which step it was, what follows for the others, what goes on without it, and when it is tried again."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Code, Engine
from cartdeck.plans import Absent, ItemFailed, PlanEnded, StepEnded, StepLog, StepState

pytestmark = pytest.mark.anyio
Told = Callable[..., Any]
FIVE = ["descriptors", "log-lines", "raise", "descriptors", "log-lines"]
KILLED = ["descriptors", "signal", "descriptors"]


def ends(events: list[Any]) -> dict[str, tuple[StepState, str | None]]:
    """The end of each step; a step that ended twice fails here."""
    found: dict[str, tuple[StepState, str | None]] = {}
    for event in events:
        if isinstance(event, StepEnded):
            assert event.step not in found
            found[event.step] = (event.state, event.because)
    return found


async def test_the_first_failure_ends_the_plan_and_says_on_whose_account(milled: Engine, told: Told) -> None:
    plan = """
() -> bad -> a
bad misbehave
bad.action = raise
a -> after -> b
after echo
() -> slow -> c
slow work
slow.steps = 1000
c -> later -> d
later echo
"""
    began = time.monotonic()
    run, events = await told(milled, plan)
    assert time.monotonic() - began < 30
    assert ends(events) == {
        "bad": (StepState.FAILED, None),
        "after": (StepState.SKIPPED, "bad"),
        "later": (StepState.SKIPPED, "bad"),
        "slow": (StepState.CANCELLED, "bad"),
    }
    assert next(event.step for event in events if isinstance(event, StepEnded)) == "bad"
    assert isinstance(events[-1], PlanEnded)
    assert events[-1].error is run.error
    assert events[-1].overall < 1
    assert run.error is not None
    assert run.error.code is Code.HANDLER_FAILED
    assert str(run.error).startswith("line 2, column 7: step bad: ")
    assert run.error.details["step"] == "bad"


async def test_an_item_that_fails_ends_the_plan_and_is_named(milled: Engine, told: Told) -> None:
    run, events = await told(milled, "action -> misbehave -> y\ny -> echo -> z", {"action": FIVE})
    assert run.error.details["item"] == [2]
    assert ends(events)["misbehave"] == (StepState.FAILED, None)


async def test_without_an_item_that_fails_the_others_go_on(milled: Engine, told: Told) -> None:
    plan = "action -> misbehave -> y\nmisbehave {on_error=absent}\ny -> echo -> z"
    run, events = await told(milled, plan, {"action": FIVE})
    items = run.result.only.items
    assert [items[number] for number in (0, 1, 3, 4)] == [b"same", b"logged", b"same", b"logged"]
    assert isinstance(items[2], Absent)
    assert (items[2].step, items[2].item, items[2].error.code) == ("misbehave", (2,), Code.HANDLER_FAILED)
    assert [one.item for one in run.result.missing] == [(2,)]
    assert [event.item for event in events if isinstance(event, ItemFailed)] == [(2,)]
    assert ends(events) == {"misbehave": (StepState.DONE, None), "echo": (StepState.DONE, None)}
    assert events[-1].overall == 1.0


async def test_what_is_gathered_leaves_out_what_is_absent(milled: Engine, told: Told) -> None:
    plan = "l -> flaky -> m\nflaky.failures = 9\nflaky.code = BAD_IMAGE\nn -> shout -> o\n(m, o) -> join -> all"
    run, events = await told(milled, plan, {"l": "lost", "n": "kept"}, on_error="absent")
    assert run.result.output("all").text == "KEPT"
    assert [one.step for one in run.result.missing] == ["flaky"]
    assert ends(events)["flaky"] == (StepState.FAILED, None)
    assert ends(events)["join"] == (StepState.DONE, None)


async def test_what_cannot_do_without_it_is_skipped_and_other_branches_are_not(milled: Engine, told: Told) -> None:
    plan = "x -> flaky -> a\nflaky.failures = 9\na -> shout -> b\nb -> again -> c\nagain echo\nx -> size -> n"
    run, events = await told(milled, plan, {"x": "skip"}, on_error="absent")
    assert ends(events) == {
        "flaky": (StepState.FAILED, None),
        "shout": (StepState.SKIPPED, "flaky"),
        "again": (StepState.SKIPPED, "flaky"),
        "size": (StepState.DONE, None),
    }
    assert run.result.output("n").text == "4"
    assert run.result.output("c").absent is not None
    with pytest.raises(Exception, match="step flaky: try 1 fails"):
        _ = run.result.output("c").data


@pytest.mark.parametrize("on_error", ["fail", "absent"])
async def test_a_cartridge_killed_in_the_middle_ends_or_leaves_a_gap(milled: Engine, told: Told, on_error: str) -> None:
    plan = "action -> misbehave -> y\nmisbehave.amount = 9\nmisbehave {at_once=1}"
    run, events = await told(milled, plan, {"action": KILLED}, on_error=on_error)
    if on_error == "fail":
        assert run.error.code is Code.CARTRIDGE_DIED
        assert ends(events) == {"misbehave": (StepState.FAILED, None)}
    else:
        items = run.result.only.items
        assert (items[0], items[2]) == (b"same", b"same")
        assert items[1].error.code is Code.CARTRIDGE_DIED


async def test_a_call_that_died_is_made_again_where_the_step_says_so(
    milled: Engine, told: Told, tmp_path: Path
) -> None:
    plan = f'x -> die-once -> y\ndie-once.marker = "{tmp_path / "died"}"\ndie-once {{retry=2}}\ny -> shout -> z'
    run, events = await told(milled, plan, {"x": "again"})
    assert run.result.only.text == "AGAIN"
    assert run.result.steps["die-once"].tries == 2
    assert [event.level for event in events if isinstance(event, StepLog) and "tried again" in event.message]


async def test_what_a_failed_try_gave_is_forgotten(milled: Engine, told: Told) -> None:
    run, events = await told(
        milled, "x -> flaky -> y\nflaky.failures = 2\nflaky {retry=3}\ny -> shout -> z", {"x": "abc"}
    )
    assert run.result.only.text == "ABC"
    assert run.result.steps["flaky"].tries == 3
    overall = [event.overall for event in events if hasattr(event, "overall")]
    assert overall == sorted(overall)
    assert overall[-1] == 1.0


async def test_each_item_has_its_own_tries(milled: Engine, told: Told) -> None:
    plan = "x -> flaky -> y\nflaky.failures = 1\nflaky {retry=1}"
    run, _ = await told(milled, plan, {"x": ["i1", "i2", "i3"]})
    assert run.result.only.items == [b"i1", b"i2", b"i3"]
    assert run.result.steps["flaky"].tries == 6


async def test_an_error_that_cannot_pass_is_not_tried_again(milled: Engine, told: Told) -> None:
    run, _ = await told(milled, "x -> flaky -> y\nflaky.code = BAD_IMAGE\nflaky {retry=5}", {"x": "permanent"})
    assert run.error.code is Code.BAD_IMAGE
    assert run.report.steps["flaky"].tries == 1


async def test_a_step_has_a_time_limit_of_its_own(milled: Engine, told: Told) -> None:
    run, events = await told(milled, "() -> work -> w\nwork.steps = 1000\nwork {timeout_s=0.2}")
    assert run.error.code is Code.TIMED_OUT
    assert ends(events) == {"work": (StepState.FAILED, None)}


@pytest.mark.parametrize(
    ("plan", "given", "words"),
    [
        ("x -> claim -> y\ny -> echo -> z", "no json", "no JSON"),
        ("x -> claim -> y\ny -> echo -> z", "[1]", "record"),
        ("x -> tamper -> y\ny -> echo -> z", "abc", "effect=none"),
    ],
)
async def test_a_step_that_gives_what_its_cap_does_not_declare_fails_there(
    milled: Engine, told: Told, plan: str, given: str, words: str
) -> None:
    run, events = await told(milled, plan, {"x": given})
    assert run.error.code is Code.BAD_OUTPUT
    assert words in str(run.error)
    assert ends(events)["echo"][0] is StepState.SKIPPED
    run, _ = await told(milled, plan, {"x": [given]})
    assert run.error.code is Code.BAD_OUTPUT


async def test_what_conforms_goes_on(milled: Engine, told: Told) -> None:
    run, _ = await told(milled, "x -> claim -> y\ny -> sink -> z", {"x": '{"a": 1}'})
    assert run.result.only.json()["bytes"] == 8
    run, _ = await told(milled, "x -> tamper -> y", {"x": "aba"})
    assert run.result.only.text == "aba"


async def test_an_engine_that_closes_ends_the_plan(milled: Engine, told: Told) -> None:
    from cartdeck.plans import PlanRun

    async with PlanRun(milled, "() -> work -> w\nwork.steps = 1000\nw -> echo -> x") as run:
        await run.next_events()
        await milled.close()
        with pytest.raises(Exception, match=r"closed|ABORTED|step work"):
            await run.collect()
