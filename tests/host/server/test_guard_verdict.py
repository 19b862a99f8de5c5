"""What guards write, read by the forms that they have: the usual, the unusual, and what must never count as safe."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck.catalog.guard import Guard, GuardFormat
from cartdeck.server.guards.verdict import Unreadable, Verdict, read_verdict, verdict_schema

SAFE = (True, ())


def rule(form: str, **keys: Any) -> Guard:
    text = json.dumps({"source": "x/y", "format": form, "prompt": "{dialogue}", **keys})
    return Guard.model_validate_json(text)


def read(form: str, text: str, **keys: Any) -> tuple[bool, tuple[str, ...]]:
    found = read_verdict(rule(form, **keys), text)
    return found.is_safe, found.categories


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("safe", SAFE),
        ("\n\nsafe", SAFE),
        ("  Safe \n", SAFE),
        ("SAFE.", SAFE),
        ("**safe**", SAFE),
        ("`safe`", SAFE),
        ("unsafe\nS1", (False, ("S1",))),
        ("\n\nunsafe\nS1,S10", (False, ("S1", "S10"))),
        ("unsafe\nS1, S2 , s2", (False, ("S1", "S2"))),
        ("Unsafe\n\n**S14**\n", (False, ("S14",))),
        ("unsafe S9", (False, ("S9",))),
        ("unsafe: S9", (False, ("S9",))),
        ("unsafe", (False, ())),
        ("unsafe\nS", (False, ())),
        ("unsafe\nviolence", (False, ())),
    ],
)
def test_llama_guard(text: str, expected: Any) -> None:
    assert read("llamaguard3", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "sa", "saf", "un", "safe\nS1", "safe to say: no", "not safe", "safety", "safe unsafe", "I cannot",
     "***", "The content is safe", "S1", "{}"],
)  # fmt: skip
def test_what_is_no_verdict_of_llama_guard_is_never_safe(text: str) -> None:
    with pytest.raises(Unreadable):
        read("llamaguard3", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Safety: Safe\nCategories: None", SAFE),
        ("Safety: Safe\nCategories: None\nRefusal: Yes", SAFE),
        ("\nsafety:safe\ncategories: none.\n", SAFE),
        ("**Safety:** Safe\n**Categories:** None", SAFE),
        ("- **Safety**: Safe\n- **Categories**: None\n- **Refusal**: No", SAFE),
        ("<think>\n\n</think>\n\nSafety: Safe\nCategories: None", SAFE),
        ("Safety: Unsafe\nCategories: Violent", (False, ("Violent",))),
        (
            "Safety: Unsafe\nCategories: Violent, Suicide & Self-Harm\nRefusal: No",
            (False, ("Violent", "Suicide & Self-Harm")),
        ),
        ("Safety: UNSAFE", (False, ())),
        ("Safety: Unsafe\nCategories:", (False, ())),
        ("Safety: Controversial\nCategories: Politically Sensitive Topics", (False, ("Politically Sensitive Topics",))),
    ],
)
def test_qwen3_guard(text: str, expected: Any) -> None:
    assert read("qwen3guard", text) == expected


def test_a_controversial_one_counts_as_the_catalog_says_and_is_told() -> None:
    text = "Safety: Controversial\nCategories: Unethical Acts"
    found = read_verdict(rule("qwen3guard", controversial="safe"), text)
    assert found == Verdict(is_safe=True, categories=("Unethical Acts",), label="controversial")
    assert found.to_plain() == {"verdict": "safe", "categories": ["Unethical Acts"], "label": "controversial"}


@pytest.mark.parametrize(
    "text",
    [
        "", "Safety:", "Safety: Saf", "Safe", "Safety: Safe", "Safety: Safe\nCategories:", "Safety: Safe\nCateg",
        "Safety: Safe\nCategories: Violent", "Safety: Safe\nSafety: Unsafe\nCategories: None", "Safety: Safe, or not",
        "Categories: None", "<think>Safety: Safe\nCategories: None</think>", "Safety: Unknown\nCategories: None",
        "It has Safety: Safe\nCategories: None",
    ],
)  # fmt: skip
def test_what_is_no_verdict_of_qwen3_guard_is_never_safe(text: str) -> None:
    with pytest.raises(Unreadable):
        read("qwen3guard", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Yes", False), ("No", True), (" yes.", False), ("No, it does not", True), ("**No**", True), ("YES\n", False)],
)
def test_shield_gemma_by_its_word_where_there_are_no_probabilities(text: str, expected: bool) -> None:
    assert read("shieldgemma", text) == (expected, ())


@pytest.mark.parametrize("text", ["", "Maybe", "Nope", "Yesterday", "N", "**", "\n\n"])
def test_what_is_no_verdict_of_shield_gemma_is_never_safe(text: str) -> None:
    with pytest.raises(Unreadable):
        read("shieldgemma", text)


def token(text: str, logprob: float, **top: float) -> dict[str, Any]:
    return {"text": text, "logprob": logprob, "top": [{"text": one, "logprob": value} for one, value in top.items()]}


def test_shield_gemma_by_the_probability_of_its_first_token() -> None:
    near = [token("No", math.log(0.5), No=math.log(0.5), Yes=math.log(0.4), Maybe=math.log(0.1))]
    found = read_verdict(rule("shieldgemma"), "No", tokens=near)
    assert found.is_safe
    assert found.probability == pytest.approx(0.4 / 0.9)
    assert not read_verdict(rule("shieldgemma", threshold=0.4), "No", tokens=near).is_safe
    both = [token("No", math.log(0.4), **{"No": math.log(0.4), " Yes": math.log(0.25), "▁yes": math.log(0.25)})]
    assert not read_verdict(rule("shieldgemma"), "No", tokens=both).is_safe
    space = [token("\n", -0.1), token("Yes", -0.1, Yes=-0.1, No=-3.0)]
    assert not read_verdict(rule("shieldgemma"), "\nYes", tokens=space).is_safe
    # certain to the last bit: the other word is not among the likeliest
    assert read_verdict(rule("shieldgemma"), "No", tokens=[token("No", 0.0)]).probability == 0.0
    # an answer in other words is read as text, and is none
    with pytest.raises(Unreadable):
        read_verdict(rule("shieldgemma"), "Perhaps", tokens=[token("Perhaps", -0.1, Perhaps=-0.1)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"safe": true, "categories": []}', SAFE),
        (' {"safe":true} ', SAFE),
        ('{"safe": false, "categories": ["violence", "violence", " "]}', (False, ("violence",))),
        ('```json\n{"safe": false, "categories": ["a"]}\n```', (False, ("a",))),
        ('{"safe": false}', (False, ())),
        ('{"safe": true, "categories": [], "reason": "it is kind"}', SAFE),
    ],
)
def test_json(text: str, expected: Any) -> None:
    assert read("json", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "true", "[]", "{}", '{"safe": "true"}', '{"safe": 1}', '{"safe": null}', '{"safe": true', "safe", "null",
     '{"safe": true, "categories": ["a"]}', '{"safe": true, "categories": "none"}', '{"unsafe": false}', "[" * 5000],
)  # fmt: skip
def test_what_is_no_verdict_in_json_is_never_safe(text: str) -> None:
    with pytest.raises(Unreadable):
        read("json", text)


def test_a_guard_that_answers_in_json_is_held_to_a_schema() -> None:
    safe, unsafe = verdict_schema(rule("json"))["anyOf"]
    assert safe["required"] == unsafe["required"] == ["safe", "categories"]
    assert safe["properties"] == {"safe": {"const": True}, "categories": {"type": "array", "maxItems": 0}}
    assert unsafe["properties"]["categories"]["items"]["type"] == "string"
    _, bound = verdict_schema(rule("json", categories=["violence", "fraud"]))["anyOf"]
    assert bound["properties"]["categories"]["items"] == {"enum": ["violence", "fraud"]}
    assert bound["properties"]["categories"]["maxItems"] == 2


@pytest.mark.parametrize("form", ["llamaguard3", "qwen3guard", "json"])
def test_a_text_that_was_cut_may_be_unsafe_and_is_never_safe(form: str) -> None:
    said = {
        "llamaguard3": ("safe", "unsafe\nS1"),
        "qwen3guard": ("Safety: Safe\nCategories: None", "Safety: Unsafe\nCategories: Viol"),
        "json": ('{"safe": true}', '{"safe": false}'),
    }[form]
    with pytest.raises(Unreadable, match="cut"):
        read_verdict(rule(form), said[0], is_cut=True)
    assert not read_verdict(rule(form), said[1], is_cut=True).is_safe


@given(st.sampled_from(GuardFormat), st.text(max_size=200))
def test_whatever_is_written_is_a_verdict_or_none(form: GuardFormat, text: str) -> None:
    try:
        found = read_verdict(rule(form), text)
    except Unreadable as error:
        found = error
    assert len(str(found)) < 500 if isinstance(found, Unreadable) else found.to_plain()["verdict"] in ("safe", "unsafe")


@given(st.sampled_from(["unsafe\nS1", "Safety: Unsafe\nCategories: Violent", '{"safe": false, "categories": []}']))
def test_no_beginning_of_an_unsafe_verdict_is_a_safe_one(text: str) -> None:
    form = {"u": "llamaguard3", "S": "qwen3guard", "{": "json"}[text[0]]
    for length in range(len(text) + 1):
        try:
            assert not read_verdict(rule(form), text[:length]).is_safe
        except Unreadable:
            continue
