"""All faults of a plan at once: each that is independent, in the order of the text, and none that only follows."""

import random
import re
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck import CartdeckError, Code
from cartdeck.plans import Plan, compile_plan
from cartdeck.plans.compiling import all_faults
from cartdeck.plans.plan import MOST_FAULTS, read_draft
from cartdeck.router import Router

SOUND = """\
speech media:audio
speech -> transcribe-speech -> transcript
summary generate-text
transcript -> summary -> short
summary.max-tokens = 64
summary {retry=1, on_error=absent}
page -> tell -> loud
tell.words -> join -> joined
(joined, first) -> pair -> paired
paired -> echo -> copied
"""
BROKEN: list[tuple[str, str, int, Code]] = [
    # what of it is replaced, by what, the line of the fault that this alone makes, and its code
    ("speech media:audio", "speech media:image", 2, Code.BAD_PLAN),
    ("summary generate-text", "summary generate-txt", 3, Code.NO_SUCH_CAP),
    ("summary generate-text", "summary cap:in=x;in=y", 3, Code.BAD_PLAN),
    ("summary.max-tokens = 64", "summary.max-tokens = many", 5, Code.BAD_ARGUMENT),
    ("summary.max-tokens = 64", "summary.max-tokns = 64", 5, Code.UNKNOWN_ARGUMENT),
    ("summary.max-tokens = 64", "sumary.max-tokens = 64", 5, Code.BAD_PLAN),
    ("retry=1", "retry=-1", 6, Code.BAD_PLAN),
    ("on_error=absent", "on_eror=absent", 6, Code.BAD_PLAN),
    ("-> tell -> loud", "-> tel -> loud", 8, Code.BAD_PLAN),  # one of two names is mistyped: there is no step tell
    ("tell.words -> join", "tell.word -> join", 8, Code.BAD_PLAN),
    ("tell.words -> join", "teller.words -> join", 8, Code.BAD_PLAN),
    ("(joined, first) ->", "joined ->", 9, Code.MISSING_ARGUMENT),
    ("-> echo -> copied", "-> echo -> paired", 10, Code.BAD_PLAN),
    ("-> echo -> copied", "-> echo -> echo", 10, Code.BAD_PLAN),
]


def faults(router: Router, text: str) -> list[CartdeckError]:
    return all_faults(read_draft(text), router)


def lines(found: list[CartdeckError]) -> list[Any]:
    return [one.details.get("line") for one in found]


def told(router: Router, text: str) -> list[tuple[int, int]]:
    return [(one.details["line"], one.details["column"]) for one in faults(router, text)]


def test_a_sound_plan_has_none(router: Router) -> None:
    assert faults(router, SOUND) == []
    assert compile_plan(Plan.parse(SOUND), router).steps


@pytest.mark.parametrize(("old", "new", "line", "code"), BROKEN)
def test_a_single_fault_is_told_alone(router: Router, old: str, new: str, line: int, code: Code) -> None:
    text = SOUND.replace(old, new)
    found = faults(router, text)
    assert [(one.details["line"], one.code) for one in found] == [(line, code)], found
    with pytest.raises(CartdeckError) as caught:
        compile_plan(Plan.parse(text), router)
    assert caught.value.to_wire() == found[0].to_wire()


def test_of_two_faults_both_are_told_or_the_one_that_hides_the_other_and_never_a_third(router: Router) -> None:
    pairs = both = 0
    for one, other in combinations(BROKEN, 2):
        text = SOUND.replace(one[0], one[1])
        if other[0] not in text:
            continue  # they change the same words
        text = text.replace(other[0], other[1])
        found = [(fault.details["line"], fault.code) for fault in faults(router, text)]
        assert found, (one, other)
        assert found == sorted(found, key=lambda fault: fault[0])
        assert set(found) <= {(one[2], one[3]), (other[2], other[3])}, (one, other, found)
        pairs += 1
        both += len(found) == 2 or one[2:] == other[2:]
    assert both > 0.9 * pairs > 60


def test_all_that_are_independent_are_told_at_once(router: Router) -> None:
    text = SOUND.replace("many", "64").replace("= 64", "= many").replace("retry=1", "retry=x")
    text = text.replace("tell.words", "tell.word").replace("-> copied", "-> short")
    text += "orphan echo\nfoo.bar = 3\nfoo.baz = 4\nnobody media:image\n"
    assert lines(faults(router, text)) == [5, 6, 8, 10, 11, 12, 14]


def test_each_source_that_fits_nothing_is_told(router: Router) -> None:
    text = "x media:audio\ny media:image\nl -> shout -> loud\n(loud, x, y, no) -> pair -> z\nno -> nothing-such -> n\n"
    assert told(router, text) == [(4, 8), (4, 11), (5, 7)]


def test_what_comes_of_a_step_that_is_unknown_is_not_looked_at(router: Router) -> None:
    assert lines(faults(router, "a -> ech -> b\nb -> transcribe-speech -> c\nc -> model-info -> d")) == [1, 3]
    assert lines(faults(router, "a -> transcribe-speech -> b\nb -> ech -> c\nc -> model-info -> d")) == [2]
    # what gives back what it is given is as unknown as that
    assert lines(faults(router, "a -> ech -> b\nb -> identity -> c\nc -> transcribe-speech -> d")) == [1]


def test_each_cycle_is_told_and_what_stands_behind_it_is_looked_at_alone(router: Router) -> None:
    text = "b -> x -> a\nx echo\na -> y -> b\ny echo\nb -> shout -> c\nshout.no = 1\n"
    text += "p -> q -> r\nq echo\nr -> s -> p\ns echo\nc -> nothing-such -> e\n"
    found = faults(router, text)
    assert [(one.details["line"], one.code) for one in found] == [
        (1, Code.PLAN_CYCLE), (6, Code.UNKNOWN_ARGUMENT), (7, Code.PLAN_CYCLE), (11, Code.NO_SUCH_CAP),
    ]  # fmt: skip


def test_a_name_that_is_mistyped_once_is_one_fault(router: Router) -> None:
    assert lines(faults(router, "shuot cap:shout\nline -> shuot1 -> b")) == [1]  # and not that no cap is named shuot1
    assert lines(faults(router, "a -> repeat -> b\nrepaet.times = 3\nrepaet.line = x")) == [2]
    assert lines(faults(router, "soundd media:audio\nsound -> identity -> x\nx -> transcribe-speech -> y")) == [1]


def test_a_header_without_a_wire_is_told_and_not_what_belongs_to_it(router: Router) -> None:
    text = "a -> echo -> b\none shout\none.line = x\none {retry=1}\none.side -> named\nnamed -> join -> c\n"
    assert lines(faults(router, text)) == [2]


def test_what_is_said_twice_is_told_where_it_is_said_again(router: Router) -> None:
    text = (
        "one shout\none echo\na -> one -> b\none.line = x\none.line = y\none {retry=1}\none {retry=2}\n"
        "p -> tell -> q\ntell.words -> w\ntell.words -> v\n"
    )
    assert lines(faults(router, text)) == [2, 5, 7, 10]


KINDS: dict[str, str] = {
    "no match": "x media:audio\nx -> shout -> y",
    "two equal matches": "(a, b) -> pair -> x",
    "a cycle": "b -> x -> a\nx echo\na -> y -> b\ny echo",
    "an unknown cap": "a -> zzzz -> b",
    "a media conflict": "x -> transcribe-speech -> a\nx -> describe-image -> b",
    "a duplicate alias": "x echo\nx shout\na -> x -> b",
    "an undefined alias": "a -> echo -> b\nzzzz.data = x",
    "an alias that is not wired": "a -> echo -> b\nzzzz echo",
    "an unused input": "a -> echo -> b\nzzzz media:x",
}


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_each_kind_of_fault_has_line_column_and_candidates(router: Router, text: str) -> None:
    (found,) = faults(router, text)
    assert found.details["line"]
    assert found.details["column"]
    assert found.details["candidates"]


STATEMENTS: list[tuple[str, list[int]]] = [
    ("a = b\na -> shout -> b\nc => d\n", [1, 3]),
    ("a -> shout\nb -> join -> c\n-> d\n", [1, 3]),
    ("a ->\n  shout =>\n  b\nc == d\n", [2, 4]),
    ("a ->\n  shout\n  -> ->\n  b\nc == d\n", [3, 5]),
    ("shout {\n  retry,\n  at_once\n}\nc == d\n", [2, 5]),
    ('shout.line = {"a":\n 1,,\n "b": 2}\nc == d\n', [1, 4]),
    ("(a, b c) -> pair -> d\n(a b) -> pair -> e\n", [1, 2]),
    ("[a -> shout b]\n[c -> shout d]\n", [1, 2]),
    # a bracket that is never closed: what follows may belong to it, until something can be read
    ("shout {\n  retry=2\na -> shout -> b\nc == d\n", [3]),
    ('shout.line = {"a": [1,\n  "b": 2}\n  "c"\na -> shout -> b\nc == d\n', [1, 5]),
    ("a => b # [ not a bracket\nc => d\n", [1, 2]),
    ('a => "[" b\nc => d\n', [1, 2]),
]


@pytest.mark.parametrize(("text", "expected"), STATEMENTS)
def test_reading_goes_on_behind_a_statement_that_cannot_be_read(router: Router, text: str, expected: list[int]) -> None:
    found = faults(router, text)
    assert lines(found) == expected, found
    with pytest.raises(CartdeckError) as caught:
        Plan.parse(text)
    assert caught.value.to_wire() == found[0].to_wire()


def test_of_statements_that_cannot_be_read_so_many_are_told(router: Router) -> None:
    assert len(faults(router, "a => b\n" * 500)) == MOST_FAULTS
    assert lines(faults(router, "(\n" * 500)) == [2]


@pytest.mark.parametrize("line", ["orphan{}.a = 1", "orphan{} echo", "orphan{} media:x"])
def test_of_one_kind_of_fault_the_first_in_the_text_are_told(router: Router, line: str) -> None:
    text = "a -> echo -> b\n" + "".join(f"{line.format(number)}\n" for number in reversed(range(2000)))
    assert lines(faults(router, text)) == list(range(2, 2 + MOST_FAULTS))


@given(
    st.lists(st.sampled_from(["a", "shout", "->", "[", "]", "{", "}", "(", ")", "=", '"', "#", ".", ",", "\n", " "]))
)
def test_any_text_has_its_faults_in_order_and_the_first_is_what_reading_raises(words: list[str]) -> None:
    text = "".join(words)
    draft = read_draft(text)
    places = [(one.details["line"], one.details["column"]) for one in draft.faults]
    if not draft.is_read:
        assert places == sorted(set(places))
    if not places:
        Plan.parse(text)
        return
    with pytest.raises(CartdeckError) as caught:
        Plan.parse(text)
    assert (caught.value.details["line"], caught.value.details["column"]) == min(places)


def test_a_plan_with_words_changed_at_random_is_compiled_or_has_its_faults_in_order(router: Router) -> None:
    chance = random.Random(7)
    spare = [
        "tell.words",
        "echo",
        "->",
        "(",
        ")",
        "]",
        "{retry=2}",
        "media:audio",
        "identity",
        "= 3",
        "joined",
        "\n",
        "()",
    ]
    for _ in range(400):
        words = re.findall(r"\s+|\S+", SOUND)
        for _ in range(chance.randint(1, 4)):
            words[chance.randrange(len(words))] = chance.choice([*spare, *words])
        text = "".join(words)
        found = told(router, text)
        assert found == sorted(set(found)), text
        if not found:
            assert compile_plan(Plan.parse(text), router).steps
            continue
        with pytest.raises(CartdeckError) as caught:
            compile_plan(Plan.parse(text), router)
        assert (caught.value.details["line"], caught.value.details["column"]) in found, text
