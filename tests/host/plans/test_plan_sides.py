"""Outputs of a cap other than the main one: their notation, their kinds, and how they run."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine
from cartdeck.plans import Plan, PlanRun, StepState, compile_plan, mermaid, run_plan, terminal_lines
from cartdeck.router import Router

Told = Callable[..., Any]
MIB = 1024 * 1024
PLAN = "page -> tell -> told\ntell.words -> shout -> loud\ntell.facts -> facts"


def fault(text: str, router: Router | None = None) -> CartdeckError:
    if router is None:
        with pytest.raises(CartdeckError) as caught:
            Plan.parse(text)
    else:
        plan = Plan.parse(text)
        with pytest.raises(CartdeckError) as caught:
            compile_plan(plan, router)
    return caught.value


# -- the notation


def test_a_side_output_is_wired_as_a_source_and_named_by_an_arrow() -> None:
    plan = Plan.parse(PLAN)
    assert plan.steps["tell"].sides == {"words": "tell.words", "facts": "facts"}
    assert plan.steps["shout"].sources == ("tell.words",)
    assert plan.input_names == ("page",)
    assert plan.output_names == ("told", "facts", "loud")


def test_the_canonical_form_is_a_fixed_point_and_a_side_output_has_one_name() -> None:
    text = "# of all\nt.words -> w\n(t.words, x) -> join -> y\np -> t -> told\nt tell\nt.words -> s -> z\ns shout"
    canonical = """join cap:join
s cap:shout
t cap:tell

p -> t -> told
# of all
t.words -> w
(w, x) -> join -> y
w -> s -> z
"""
    plan = Plan.parse(text)
    printed = plan.to_text()
    assert sorted(printed.split("\n")) == sorted(canonical.split("\n"))
    assert Plan.parse(printed) == plan
    assert Plan.parse(printed).to_text() == printed


def test_a_constant_and_a_bracket_still_read_beside_it() -> None:
    plan = Plan.parse("[p -> t -> ()] [t.words\n -> \n s -> z] t.mark = 1\n[t.facts -> f]")
    assert plan.steps["t"].constants == {"mark": 1}
    assert plan.output_names == ("f", "z")


@pytest.mark.parametrize(
    ("text", "line", "column", "candidates"),
    [
        ("p -> tell -> x\ntel.words -> join -> y", 2, 1, ["tell"]),
        ("p -> tell -> x\ntel.words -> y", 2, 1, ["tell"]),
        ("p -> tell -> x\n(x, tel.words) -> join -> y", 2, 5, ["tell"]),
        ("p -> tell -> x\ntell.words -> y\ntell.words -> z", 3, 15, ["y"]),
        ("p -> tell -> x\ntell.words -> x", 2, 15, ["x-2"]),
        ("p -> tell -> x\ntell.words -> tell", 2, 15, ["x", "tell"]),
        ("p -> tell -> x\ntell. -> y", 2, 6, None),
        ("p -> tell -> x\ntell.words -> ()", 2, 15, None),
        ("p -> tell -> tell.words", 1, 18, None),
        ("p -> tell -> x\ntell.words", 2, 11, None),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_place(
    text: str, line: int, column: int, candidates: list[str] | None
) -> None:
    error = fault(text)
    assert (error.code, error.details["line"], error.details["column"]) == (Code.BAD_PLAN, line, column)
    if candidates is not None:
        assert error.details["candidates"] == candidates


def test_a_plan_made_in_python_takes_side_outputs_too() -> None:
    plan = Plan()
    told = plan.step("tell", "tell", plan.input("page"), to="told")
    facts = plan.side("tell", "facts", to="facts")
    plan.step("shout", "shout", "tell.words", to="loud")
    assert (told, facts, plan.side("tell", "words")) == ("told", "facts", "tell.words")
    assert plan == Plan.parse("tell tell\nshout shout\n" + PLAN)
    assert Plan.parse(plan.to_text()) == plan
    for wrong in (("nobody", "words", None), ("tell", "a b", None), ("tell", "words", "other")):
        with pytest.raises(CartdeckError):
            plan.side(wrong[0], wrong[1], to=wrong[2])


# -- the compiler


def test_it_has_the_kind_and_the_depth_that_the_cap_declares(router: Router) -> None:
    plan = compile_plan(Plan.parse(PLAN), router)
    assert (str(plan.values["tell.words"].media), plan.values["tell.words"].depth) == ("media:enc=utf-8;line", 1)
    assert plan.steps["shout"].loops == 1
    mapped = compile_plan(Plan.parse(PLAN), router, depths={"page": 1})
    assert [mapped.values[name].depth for name in ("told", "facts", "tell.words", "loud")] == [1, 1, 2, 2]


def test_an_output_that_the_cap_does_not_have_is_told_with_those_it_has(router: Router) -> None:
    error = fault("p -> tell -> x\ntell.fact -> y", router)
    assert (error.code, error.details["line"], error.details["column"]) == (Code.BAD_PLAN, 2, 14)
    assert error.details["candidates"] == ["facts"]
    assert "has no output fact; there are facts, words" in str(error)
    assert "it has none besides the main one" in str(fault("p -> shout -> x\nshout.y -> z", router))
    assert fault("p -> tell -> x\ntell.facts -> shout -> y", router).details["line"] == 2


def test_a_cycle_through_a_side_output_is_found(router: Router) -> None:
    assert fault("(tell.facts, p) -> tell -> x", router).code in (Code.PLAN_CYCLE, Code.BAD_PLAN)
    assert fault("tell.words -> join -> page\npage -> tell -> x", router).code is Code.PLAN_CYCLE


def test_it_is_drawn(router: Router) -> None:
    plan = compile_plan(Plan.parse(PLAN), router)
    assert (
        "\n".join(terminal_lines(plan))
        == """\
○  page        media:enc=utf-8;page
●  tell        tell on mill
◇  told        media:enc=utf-8;told
◇  facts       media:fmt=json;page-facts;record
◦  tell.words  a sequence of media:enc=utf-8;line
◉  shout       shout on mill, for each item
◇  loud        a sequence of media:enc=utf-8;loud-line"""
    )
    assert '-->|"tell.words"|' in mermaid(plan)


# -- running


@pytest.mark.anyio
async def test_side_outputs_flow_beside_the_main_one(milled: Engine) -> None:
    result = await run_plan(milled, PLAN, {"page": "a bc d"})
    assert result.output("told").text == "A BC D"
    assert result.output("loud").items == [b"A", b"BC", b"D"]
    assert result.output("facts").json() == {"words": 3}
    only = await run_plan(milled, "page -> tell -> ()\ntell.facts -> facts", {"page": "a bc d"})
    assert only.only.json() == {"words": 3}


@pytest.mark.anyio
async def test_a_mapped_step_gives_a_side_output_for_each_item(milled: Engine) -> None:
    result = await run_plan(milled, PLAN, {"page": ["a b", "c"]})
    assert result.output("told").items == [b"A B", b"C"]
    assert result.output("loud").items == [[b"A", b"B"], [b"C"]]
    assert result.output("facts").items == [b'{"words": 2}', b'{"words": 1}']
    deeper = await run_plan(milled, PLAN, {"page": [["a b"], ["c", "d e f"]]})
    assert deeper.output("told").items == [[b"A B"], [b"C", b"D E F"]]
    assert deeper.output("loud").items == [[[b"A", b"B"]], [[b"C"], [b"D", b"E", b"F"]]]
    only = await run_plan(milled, "page -> tell -> ()\ntell.facts -> facts", {"page": ["a b", "c"]})
    assert only.only.items == [b'{"words": 2}', b'{"words": 1}']


@pytest.mark.anyio
async def test_a_side_output_that_is_not_as_declared_fails_the_step(milled: Engine, told: Told) -> None:
    run, _ = await told(milled, PLAN, {"page": "  "})
    assert run.error is not None
    assert run.error.code is Code.BAD_OUTPUT
    assert "the output facts is not what the cap declares" in str(run.error)
    unwired, _ = await told(milled, "page -> tell -> x", {"page": "  "})
    assert unwired.error is None
    run, _ = await told(milled, PLAN, {"page": ["a", " "]}, on_error="absent")
    assert [one.item for one in run.result.missing] == [(1,)]
    assert len(run.result.output("loud").items) == 2


@pytest.mark.anyio
async def test_a_step_that_reads_one_output_before_the_other_does_not_stop_their_giver(milled: Engine) -> None:
    async def data() -> AsyncIterator[bytes]:
        for _ in range(24):
            yield b"x" * MIB

    plan = "data media:data\ndata -> fork -> left\n(left, fork.right) -> concat -> sizes"
    async with PlanRun(milled, plan, {"data": data()}, memory_bytes=MIB) as run:
        result = await run.collect()
    assert result.only.json() == {"sizes": [24 * MIB, 24 * MIB]}


@pytest.mark.anyio
async def test_side_outputs_are_kept_and_one_that_was_not_wired_makes_the_step_run_again(
    milled: Engine, tmp_path: Path
) -> None:
    async def run(plan: str, page: Any) -> tuple[Any, list[StepState]]:
        result = await run_plan(milled, plan, {"page": page}, state=tmp_path)
        return result, [report.state for report in result.steps.values()]

    _, states = await run("page -> tell -> told", "a b")
    assert states == [StepState.DONE]
    for expected in ([StepState.DONE, StepState.DONE], [StepState.REUSED, StepState.REUSED]):
        result, states = await run(PLAN, "a b")
        assert states == expected
        assert result.output("loud").items == [b"A", b"B"]
        assert result.output("facts").json() == {"words": 2}
    result, states = await run("page -> tell -> ()\ntell.facts -> facts", "a b")
    assert states == [StepState.REUSED]
    mapped, _ = await run(PLAN, ["x y", "z"])
    again, states = await run(PLAN, ["x y", "z"])
    assert set(states) == {StepState.REUSED}
    assert [again.output(name).items for name in ("told", "loud", "facts")] == [
        mapped.output(name).items for name in ("told", "loud", "facts")
    ]
