"""Plans on real processes: what comes out, in which order, with which events."""

import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine
from cartdeck.plans import (
    Items,
    One,
    Plan,
    PlanEnded,
    PlanRun,
    StepEnded,
    StepProgress,
    StepStarted,
    StepState,
    run_plan,
)

pytestmark = pytest.mark.anyio
Told = Callable[..., Any]


async def test_a_chain_gives_what_its_last_step_gives(milled: Engine) -> None:
    result = await run_plan(milled, "a -> shout -> b\nb -> echo -> c\nc -> sink -> d", {"a": "hello"})
    assert result.only.json() == {"bytes": 5, "chunks": 1}
    assert [report.state for report in result.steps.values()] == [StepState.DONE] * 3


async def test_a_diamond_joins_what_it_split(milled: Engine) -> None:
    plan = """
text -> upper -> loud
upper shout
text -> words -> lines
words split
lines -> again -> page
again join
(loud, page) -> pair -> both
"""
    result = await run_plan(milled, plan, {"text": "a b  c"})
    assert result.output("both").text == "A B  C+a b c"


async def test_a_sequence_is_mapped_in_order_and_gathered(milled: Engine) -> None:
    words = [f"word{number}" for number in range(200)]
    result = await run_plan(
        milled, "page -> split -> lines\nlines -> shout -> loud\nloud -> join -> all", {"page": " ".join(words)}
    )
    assert result.only.text == " ".join(words).upper()
    assert result.steps["shout"].items == 200


async def test_several_sources_are_gathered_one_after_the_other(milled: Engine) -> None:
    result = await run_plan(milled, "(one, many, last) -> join -> all", {"one": "x", "many": ["a", "b"], "last": ["c"]})
    assert result.only.text == "x a b c"
    assert (await run_plan(milled, "(x, x) -> join -> y", {"x": "twice"})).only.text == "twice twice"


async def test_nested_sequences_are_mapped_as_deep_as_they_are(milled: Engine) -> None:
    plan = "pages -> split -> lines\nlines -> shout -> loud\nloud -> join -> again"
    result = await run_plan(milled, plan, {"pages": ["a b", "", "c d e"]})
    assert result.only.items == [b"A B", b"", b"C D E"]
    result = await run_plan(milled, "pages -> split -> lines\nlines -> shout -> loud", {"pages": ["a b", "", "c"]})
    assert result.only.items == [[b"A", b"B"], [], [b"C"]]


async def test_sequences_side_by_side_go_in_pairs_and_a_single_value_with_each(milled: Engine) -> None:
    plan = "(line, page, mark) -> pair -> x"
    inputs = {"line": ["a", "b"], "page": ["1", "2"], "mark": "-"}
    declared = "mark media:enc=utf-8;mark\n"
    assert (await run_plan(milled, declared + plan, inputs)).only.items == [b"a-1", b"b-2"]


async def test_sequences_of_unequal_length_fail_by_name(milled: Engine) -> None:
    with pytest.raises(CartdeckError, match="unequal: line has at least 3, page has 2") as caught:
        await run_plan(milled, "(line, page) -> pair -> x", {"line": ["a", "b", "c"], "page": ["1", "2"]})
    assert caught.value.code is Code.BAD_ARGUMENT
    assert caught.value.details["step"] == "pair"


async def test_a_number_that_a_step_gives_is_an_argument_of_another(milled: Engine) -> None:
    result = await run_plan(milled, "a -> size -> n\n(b, n) -> repeat -> c", {"a": "four", "b": "xy"})
    assert result.only.text == "xyxyxyxy"


async def test_inputs_are_text_bytes_files_folders_streams_and_items(milled: Engine, tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".hidden").write_text("no")

    async def parts() -> AsyncIterator[str]:
        for part in ("so ", "it ", "goes"):
            yield part

    async def given(value: Any) -> Any:
        output = (await run_plan(milled, "x -> echo -> y", {"x": value})).only
        return output.items if output.depth else output.data

    assert await given("text") == b"text"
    assert await given(bytearray(b"\xff")) == b"\xff"
    assert await given(tmp_path / "a") == b"a"
    assert await given(parts()) == b"so it goes"
    assert await given(Items(parts())) == [b"so ", b"it ", b"goes"]
    assert await given(Items(str(number) for number in range(3))) == [b"0", b"1", b"2"]
    assert await given([]) == []
    assert await given(One(["a"])) == b'["a"]'
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / name).write_text(name)
    assert await given(folder) == [b"a", b"b"]


async def test_inputs_that_do_not_fit_the_plan_are_refused_before_anything_starts(milled: Engine) -> None:
    with pytest.raises(CartdeckError, match="no input tex"):
        await run_plan(milled, "text -> echo -> y", {"text": "a", "tex": "b"})
    with pytest.raises(CartdeckError, match="line 1, column 1: the input text is not given"):
        await run_plan(milled, "text -> echo -> y")
    for wrong in (5, ["a", 5], ["a", ["b"]], [["a"], [5]], {"a": 1}, Items([b"a", 5]), ("a", 5)):
        with pytest.raises(CartdeckError, match=r"^the input text: ") as caught:
            await run_plan(milled, "text -> echo -> y", {"text": wrong})
        assert caught.value.argument == "text"
    assert milled.pool.sessions == []
    with pytest.raises(CartdeckError, match=r"^the input text: "):
        await run_plan(milled, "text -> echo -> y", {"text": Items(iter([b"a", 5]))})


async def test_an_input_that_fails_ends_the_plan(milled: Engine) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("no more")

    with pytest.raises(CartdeckError, match="input x failed with ValueError: no more"):
        await run_plan(milled, "x -> echo -> y", {"x": parts()})


async def test_a_chain_of_many_steps_runs_on_a_cartridge_with_few_places(milled: Engine, told: Told) -> None:
    count = 200
    lines = [f"s{i} shout\nv{i} -> s{i} -> v{i + 1}" for i in range(count)]
    run, events = await told(milled, "\n".join(lines), {"v0": "x"})
    assert run.result.only.text == "X"
    ended = [event.step for event in events if isinstance(event, StepEnded)]
    assert ended == [f"s{i}" for i in range(count)]


@pytest.mark.timeout(180)
async def test_a_thousand_steps_and_ten_thousand_items_come_through(engine: Engine) -> None:
    lines = [f"s{i} cap:echo;test\nv{i} -> s{i} -> v{i + 1}" for i in range(1000)]
    assert (await run_plan(engine, "\n".join(lines), {"v0": "x"})).only.text == "x"
    items = [str(number).encode() for number in range(10_000)]
    assert (await run_plan(engine, "x -> echo -> y", {"x": items})).only.items == items


async def test_events_tell_each_step_once_and_progress_never_falls(milled: Engine, told: Told) -> None:
    plan = "page -> split -> lines\nlines -> shout -> loud\nloud -> join -> all\n() -> work -> w\nwork.seconds = 0.01"
    run, events = await told(milled, plan, {"page": "a b c d e f"})
    steps = ["split", "shout", "join", "work"]
    assert sorted(event.step for event in events if isinstance(event, StepStarted)) == sorted(steps)
    assert sorted(event.step for event in events if isinstance(event, StepEnded)) == sorted(steps)
    overall = [event.overall for event in events if hasattr(event, "overall")]
    assert overall == sorted(overall)
    assert overall[-1] == 1.0
    assert all(one < 1 for one in overall[:-1])
    assert isinstance(events[-1], PlanEnded)
    progress = [event for event in events if isinstance(event, StepProgress)]
    shouts = [event for event in progress if event.step == "shout"]
    assert (shouts[-1].items_done, shouts[-1].items_total) == (6, 6)
    assert any(event.phase == "working" and event.item == () for event in progress if event.step == "work")
    for event in progress:
        assert 0 <= event.fraction <= 1
    assert run.result.steps["shout"].tries == 6


async def test_steps_that_need_nothing_of_each_other_run_together(milled: Engine, told: Told) -> None:
    _, events = await told(milled, "() -> one -> a\none work\n() -> two -> b\ntwo work")
    kinds = [type(event) for event in events if isinstance(event, StepStarted | StepEnded)]
    assert kinds == [StepStarted, StepStarted, StepEnded, StepEnded]


async def test_a_plan_runs_once_and_has_a_result_only_at_its_end(milled: Engine) -> None:
    run = PlanRun(milled, Plan.parse("a -> echo -> b"), {"a": "x"})
    async with run:
        with pytest.raises(RuntimeError, match="not ended"):
            _ = run.result
        assert (await run.collect()).only.text == "x"
        with pytest.raises(RuntimeError, match="once"):
            run.begin()
    assert run.result.output("b").data == b"x"
    with pytest.raises(CartdeckError, match="no output c; there are: b"):
        run.result.output("c")


async def test_what_nobody_wants_is_not_kept(milled: Engine) -> None:
    result = await run_plan(milled, "() -> emit -> x\nemit.count = 20\nx -> discard -> ()")
    assert result.outputs == {}
    result = await run_plan(milled, "() -> emit -> ()\nemit.count = 20")
    assert result.steps["emit"].state is StepState.DONE


async def test_a_report_names_steps_that_are_not_reached_and_a_cancel_ends_them(milled: Engine) -> None:
    plan = "() -> slow -> a\nslow work\nslow.steps = 1000\na -> shout -> b\n(b, b) -> join -> c\nc -> sink -> d"
    async with PlanRun(milled, plan) as run:
        async for event in run:
            if isinstance(event, StepProgress):
                break
        states = {name: report.state for name, report in run.report.steps.items()}
        waiting = dict.fromkeys(("shout", "join", "sink"), StepState.WAITING)
        assert states == {"slow": StepState.RUNNING} | waiting
        assert [report.cartridge for report in run.report.steps.values()] == ["echo", "mill", "mill", "echo"]
    assert {report.state for report in run.report.steps.values()} == {StepState.CANCELLED}


@pytest.mark.parametrize(
    "plan",
    [
        "a -> shout -> b\nb -> echo -> c\n(b, b) -> join -> d",
        "() -> bad -> b\nbad misbehave\nbad.action = raise\nb -> shout -> c\nc -> shout-2 -> d\nshout-2 shout",
    ],
    ids=["whole", "with steps that are skipped"],
)
async def test_a_run_that_nobody_holds_is_gone_at_once_with_what_it_kept(milled: Engine, plan: str) -> None:
    run = PlanRun(milled, plan, {"a": "x"} if plan.startswith("a ") else {}, on_error="absent")
    async with run:
        await run.collect()
    assert all(report.state.is_final for report in run.report.steps.values())
    gone = weakref.ref(run)
    del run
    assert gone() is None
