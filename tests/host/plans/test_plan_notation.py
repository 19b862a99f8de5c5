"""The notation: what it reads, where it says that something is wrong, and its canonical form."""

import json
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cartdeck import CartdeckError, Code
from cartdeck.plans import Plan

BRACKETED = """
[extract cap:in="media:ext=pdf";extract;out="media:txt;enc=utf-8"]
[embed cap:in="media:enc=utf-8";embed;out="media:embedding-vector;fmt=json;record"] [doc -> extract -> text]
[text -> embed
   -> vectors]
"""
LINES = """
extract cap:in="media:ext=pdf";extract;out="media:txt;enc=utf-8"
embed cap:in="media:enc=utf-8";embed;out="media:embedding-vector;fmt=json;record"
doc -> extract -> text
text --> embed ---> vectors
"""


def fault(text: str) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        Plan.parse(text)
    return caught.value


def test_brackets_and_lines_are_the_same_plan() -> None:
    plan = Plan.parse(BRACKETED)
    assert plan == Plan.parse(LINES)
    assert list(plan.steps) == ["extract", "embed"]
    assert plan.input_names == ("doc",)
    assert plan.output_names == ("vectors",)


def test_a_group_joins_sources() -> None:
    plan = Plan.parse("d cap:describe\n(thumbnail, model_spec,\n  question) -> d -> text")
    assert plan.steps["d"].sources == ("thumbnail", "model_spec", "question")


def test_a_cap_without_a_header_is_named_by_its_alias() -> None:
    plan = Plan.parse("doc -> csv2json -> out")
    assert plan.steps["csv2json"].cap == "cap:csv2json"


def test_a_header_may_name_a_cap_by_its_alias_alone() -> None:
    assert Plan.parse("x generate-text;gguf\na -> x -> b").steps["x"].cap == "cap:generate-text;gguf"


def test_each_wiring_of_one_header_is_a_step() -> None:
    plan = Plan.parse("e cap:echo\ne.k = 1\na -> e -> b\nb -> e -> c\nx -> e-2 -> y")
    assert [(step.name, step.sources, step.target) for step in plan.steps.values()] == [
        ("e", ("a",), "b"), ("e-3", ("b",), "c"), ("e-2", ("x",), "y"),
    ]  # fmt: skip
    assert plan.steps["e-3"].constants == {"k": 1}


def test_nothing_may_go_in_or_come_out() -> None:
    plan = Plan.parse("() -> emit -> x\nx -> discard -> ()")
    assert plan.steps["emit"].sources == ()
    assert plan.steps["discard"].target is None
    assert plan.input_names == plan.output_names == ()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("64", 64),
        ("-0.5", -0.5),
        ("true", True),
        ('"a # b"', "a # b"),
        ("[1, [2]]", [1, [2]]),
        ('{"a": "]"}', {"a": "]"}),
        ("hf:owner/name:*Q4*#sha256=ab", "hf:owner/name:*Q4*#sha256=ab"),
        ("two words  # why", "two words"),
        ("12abc", "12abc"),
    ],
)
def test_a_constant_is_json_or_bare_text(written: str, value: Any) -> None:
    assert Plan.parse(f"a -> s -> b\ns.x-y = {written}\n").steps["s"].constants == {"x-y": value}
    bare = written.partition("  #")[0]
    assert Plan.parse(f"[a -> s -> b][s.x-y = {bare}]").steps["s"].constants == {"x-y": value}


def test_settings_of_a_step_are_read() -> None:
    settings = Plan.parse("a -> s -> b\ns {retry=2, on_error=absent,\n timeout_s=60, at_once=3}").steps["s"].settings
    assert (settings.retry, settings.on_error, settings.timeout_s, settings.at_once) == (2, "absent", 60, 3)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
        ("a -> b", 1, 7, "expected ->"),
        ("a -> b -> \nc d", 2, 3, "end of the line"),
        ("\n(a -> b -> c", 2, 4, ", or )"),
        ("[a -> b -> c", 1, 1, "never closed"),
        ("a -> b -> c d", 1, 13, "end of the line"),
        ("x -> LOOP a -> b", 1, 6, "LOOP"),
        ("a cap:x\na cap:y\nn -> a -> m", 2, 1, "declared twice, first at line 1, column 1"),
        ("a cap:x", 1, 1, "not wired"),
        ("n -> a -> m\nb.k = 1", 2, 1, "no step b"),
        ("n -> a -> m\nb {retry=1}", 2, 1, "no step b"),
        ("n -> a -> m\no -> b -> m", 2, 11, "given by a already"),
        ("n -> a -> m\na -> b -> o", 2, 1, "a is a step"),
        ("n -> a -> m\nm -> b -> a", 2, 11, "a is a step"),
        ("n -> a -> m\na.k = 1\na.k = 2", 3, 3, "given twice, first at line 2, column 3"),
        ("n -> a -> m\na.k = null", 2, 7, "null"),
        ("n -> a -> m\na.k = [1, 1e400]", 2, 7, "no JSON"),
        ("n -> a -> m\na.k = {", 2, 7, "no JSON"),
        ("n -> a -> m\na {retry=-1}", 2, 4, "from 0"),
        ("n -> a -> m\na {retri=1}", 2, 4, "no setting"),
        ("n -> a -> m\na {retry=1, retry=2}", 2, 13, "set twice"),
        ("n -> a -> m\na {on_error=ignore}", 2, 4, "fail or absent"),
        ('n -> a -> m\na cap:in="media:x";in=y', 2, 20, "there twice"),
        ("n media:a!b\nn -> a -> m", 1, 11, "no media URN"),
        ("n media:x\na -> s -> b", 1, 1, "used by no step"),
        ("n media:x\na -> n -> b", 2, 6, "an input, and no step"),
        ("n media:x\na -> s -> n", 1, 1, "declared as an input"),
        ("1a -> b -> c", 1, 1, "a statement"),
        ("a -> b -> (c)", 1, 12, "one target"),
        ("n => a -> m", 1, 3, "the cap of n, or ->"),
        ("n -> a -> m\na = 3", 2, 3, "the cap of a, or ->"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place(text: str, line: int, column: int, words: str) -> None:
    error = fault(text)
    assert error.code is Code.BAD_PLAN
    assert words in str(error)
    assert (error.details["line"], error.details["column"]) == (line, column), str(error)
    assert str(error).startswith(f"line {line}, column {column}: ")


def test_a_mistyped_name_is_told_with_its_candidates() -> None:
    assert fault("n -> summary -> m\nsumary.k = 1").details["candidates"] == ["summary"]
    assert fault("n -> a -> m\na {time_out=1}").details["candidates"][0] == "timeout_s"


def test_the_canonical_form_orders_steps_and_keeps_comments() -> None:
    text = """# the second
second cap:echo;x
first CAP:ECHO
second {timeout_s=5, retry=1}
b -> second -> c
first.z = 1
first.a = "é"   # a constant
a -> first -> b
# the end
"""
    canonical = """first cap:echo
# a constant
first.a = "é"
first.z = 1
# the second
second cap:echo;x
second {retry=1, timeout_s=5}

a -> first -> b
b -> second -> c

# the end
"""
    assert Plan.parse(text).to_text() == canonical
    assert Plan.parse(canonical).to_text() == canonical


def test_a_plan_made_in_python_is_the_plan_that_its_text_reads_as() -> None:
    plan = Plan()
    speech = plan.input("speech", "media:audio")
    transcript = plan.step("hear", "transcribe-speech", speech, to="transcript", retry=2)
    plan.step("sum", "cap:generate-text;gguf", transcript, to="summary", constants={"max-tokens": 64})
    plan.step("drop", "discard", transcript, to=None)
    assert Plan.parse(plan.to_text()) == plan
    assert plan.input_names == ("speech",)
    assert plan.output_names == ("summary",)
    with pytest.raises(CartdeckError, match="two steps named sum"):
        plan.step("sum", "echo", speech)
    with pytest.raises(CartdeckError, match="no cap"):
        plan.step("other", "cap:x;x", speech)


@pytest.mark.parametrize("name", ["", "a b", "1a", "a-", "a.b", "ä"])
def test_a_plan_made_in_python_has_names_that_its_text_can_have(name: str) -> None:
    for arguments in ((name, "echo", "x"), ("s", "echo", name)):
        with pytest.raises(CartdeckError, match=r"has the name|there is no step a;"):  # a.b is a side output of a
            Plan().step(*arguments)
    with pytest.raises(CartdeckError, match="has the name"):
        Plan().input(name, "media:x")


def test_a_plan_without_steps_and_an_input_without_use_are_faults() -> None:
    with pytest.raises(CartdeckError, match="empty"):
        Plan().check_names()
    plan = Plan()
    plan.step("s", "echo", "x")
    plan.input("y", "media:z")
    with pytest.raises(CartdeckError, match="the input y is used by no step"):
        plan.check_names()


def test_a_cycle_can_be_printed() -> None:
    text = "x cap:x\ny cap:y\n\nb -> x -> a\na -> y -> b\n"
    assert Plan.parse(text).to_text() == text


NAMES = st.sampled_from(["a", "b", "c-1", "d_2", "_e", "F"])
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
STEPS = st.lists(
    st.tuples(
        st.lists(NAMES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=2),
        st.sampled_from([{}, {"retry": 1}, {"on_error": "absent", "timeout_s": 0.5}]), st.booleans(),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other jobs may take the machine
@given(STEPS)
def test_any_plan_is_read_back_as_itself_and_its_text_is_a_fixed_point(steps: list[Any]) -> None:
    plan = Plan()
    for number, (sources, constants, asked, is_wanted) in enumerate(steps):
        target = f"v{number}" if is_wanted else None
        given_to = [*sources, *(["v0"] if number and "v0" in plan.producers else [])]
        plan.step(f"s{number}", f"cap:step-{number};in=media:x", *given_to, to=target, constants=constants, **asked)
    text = plan.to_text()
    again = Plan.parse(text)
    assert again == plan
    assert again.to_text() == text


@settings(deadline=None)
@given(st.text(alphabet=string.printable + "é→", max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    check_text(text)


def check_text(text: str) -> None:
    try:
        plan = Plan.parse(text)
    except CartdeckError as found:
        error = found
    else:
        assert Plan.parse(plan.to_text()) == plan
        assert Plan.parse(plan.to_text()).to_text() == plan.to_text()
        return
    assert error.code is Code.BAD_PLAN
    json.dumps(error.to_wire())


PIECES = [
    "a",
    "b",
    "cap:x",
    "media:y",
    "->",
    "(",
    ")",
    ",",
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    "1",
    '"t"',
    "\n",
    " ",
    "#c\n",
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24))
def test_any_row_of_words_is_read_or_refused(pieces: list[str]) -> None:
    check_text("".join(pieces))
