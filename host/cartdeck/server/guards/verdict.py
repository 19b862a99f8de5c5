"""Owns the reading of verdicts: what a guard wrote, in the form that it writes in, becomes safe or unsafe.

It does not know guards nor what follows. Whatever has not the whole form is no verdict (`Unreadable`), and never a safe
one: an empty text, one that was cut, one that contradicts itself.

The forms are those of the models' own cards: Llama Guard 3 ("safe", or "unsafe" and a line of categories), Qwen3Guard
("Safety: …", "Categories: …", for answers "Refusal: …"), ShieldGemma (the probability of Yes against that of No).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck.catalog.guard import Guard, GuardFormat

_MOST_CATEGORIES: Final = 64
_LONGEST_CATEGORY: Final = 80
_MOST_NAMED: Final = 8
"""Categories that a guard of the format json may name at once: its text is short then."""
_SHOWN: Final = 200
_MARKS: Final = " \t\r*_`\"'#>.,:;-"
"""What people's markdown puts around a word."""
_THOUGHT: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCE: Final = re.compile(r"\A\s*```[a-z]*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
_LLAMA_CATEGORY: Final = re.compile(r"S[0-9]{1,2}", re.IGNORECASE)
_QWEN_LINE: Final = re.compile(r"[\s*_`#>-]*(safety|categories|category|refusal)[\s*_`]*:(.*)", re.IGNORECASE)
_NONE: Final = "none"
_AROUND_WORD: Final = " ▁Ġ\n\t\r*\"'`."


class Unreadable(ValueError):
    """What the guard wrote is no verdict; the message says why, and shows the text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guard says of a request or an answer."""

    is_safe: bool
    categories: tuple[str, ...] = ()
    """As the guard names them."""
    label: str = ""
    """Its own word, where it has more than two: controversial."""
    probability: float | None = None
    """That it is unsafe, where the guard says it."""

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"verdict": "safe" if self.is_safe else "unsafe"}
        if self.categories:
            plain["categories"] = list(self.categories)
        if self.label:
            plain["label"] = self.label
        if self.probability is not None:
            plain["probability"] = round(self.probability, 6)
        return plain


@dataclass(slots=True)
class VerdictTally:
    """How often one guard said what; `down` are those times that it gave no verdict."""

    safe: int = 0
    unsafe: int = 0
    down: int = 0
    reason: str = ""
    """Why it gave none the last time; empty when it did."""

    def count(self, verdict: Verdict | None, reason: str = "") -> bool:
        """Count one. Whether it is down now and was not before."""
        was_down, self.reason = bool(self.reason), reason
        if verdict is None:
            self.down += 1
        elif verdict.is_safe:
            self.safe += 1
        else:
            self.unsafe += 1
        return bool(reason) and not was_down

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"verdicts": {"safe": self.safe, "unsafe": self.unsafe, "down": self.down}}
        return plain | ({"is_down": self.reason} if self.reason else {})


def read_verdict(rule: Guard, text: str, *, tokens: Sequence[Mapping[str, Any]] = (), is_cut: bool = False) -> Verdict:
    """The verdict in what a guard wrote. `tokens` are the records of its tokens with their logarithms of probability,
    where there are some; `is_cut` says that its text was not at its end. Raises Unreadable."""
    text = _THOUGHT.sub("", text)
    if not text.strip():
        raise Unreadable("it wrote nothing")
    match rule.format:
        case GuardFormat.LLAMAGUARD3:
            verdict = _llama(text)
        case GuardFormat.QWEN3GUARD:
            verdict = _qwen(text, controversial_is_safe=rule.controversial == "safe")
        case GuardFormat.SHIELDGEMMA:
            return _shield(text, tokens, threshold=rule.threshold)  # one token says it: the rest may be cut
        case GuardFormat.JSON:
            verdict = _json(text)
    if is_cut and verdict.is_safe:
        raise _unreadable("it was cut before its end", text)
    return verdict


def _llama(text: str) -> Verdict:
    lines = [line.strip(_MARKS) for line in text.splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        raise _unreadable('expected "safe", or "unsafe" and its categories', text)
    word = re.split(r"[\s:,.]+", lines[0], maxsplit=1)[0].strip(_MARKS).lower()
    if word == "unsafe":
        found = _LLAMA_CATEGORY.findall(" ".join(lines))
        return Verdict(is_safe=False, categories=_categories(one.upper() for one in found))
    if lines[0].lower() != "safe":
        raise _unreadable('expected "safe", or "unsafe" and its categories', text)
    if len(lines) > 1:
        raise _unreadable('expected nothing behind "safe"', text)
    return Verdict(is_safe=True)


def _qwen(text: str, *, controversial_is_safe: bool) -> Verdict:
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        if (found := _QWEN_LINE.fullmatch(line)) is not None:
            key = "categories" if found[1].lower() == "category" else found[1].lower()
            said.setdefault(key, []).append(found[2].strip(_MARKS))
    labels = {one.lower() for one in said.get("safety", [])}
    if len(labels) != 1 or not labels <= {"safe", "unsafe", "controversial"}:
        raise _unreadable('expected one line "Safety: Safe", "Safety: Unsafe" or "Safety: Controversial"', text)
    [label] = labels
    names = [part.strip(_MARKS) for line in said.get("categories", []) for part in line.split(",")]
    categories = _categories(one for one in names if one and one.lower() != _NONE)
    if label == "safe":
        if not any(names):
            raise _unreadable('expected a line "Categories: None" with it: it was cut', text)
        if categories:
            raise _unreadable("it is called safe, and has categories", text)
        return Verdict(is_safe=True)
    is_safe = label == "controversial" and controversial_is_safe
    return Verdict(is_safe=is_safe, categories=categories, label="" if label == "unsafe" else label)


def _shield(text: str, tokens: Sequence[Mapping[str, Any]], *, threshold: float) -> Verdict:
    """Yes says that the policy is violated. Its probability is taken of both words alone, as the card has it."""
    for token in tokens:
        sums = {"yes": 0.0, "no": 0.0}
        alternatives = {str(one.get("text", "")): one.get("logprob") for one in (token, *_top(token))}
        for word, logprob in alternatives.items():
            key = word.strip(_AROUND_WORD).lower()
            if key in sums and isinstance(logprob, int | float) and logprob <= 0:
                sums[key] += math.exp(logprob)
        if total := sums["yes"] + sums["no"]:
            probability = sums["yes"] / total
            return Verdict(is_safe=probability < threshold, probability=probability)
        if str(token.get("text", "")).strip(_AROUND_WORD):
            break  # its first word is neither of the two
    word = re.split(r"[^A-Za-z]+", text.strip(_MARKS + "\n"), maxsplit=1)[0].lower()
    if word not in ("yes", "no"):
        raise _unreadable("expected Yes or No", text)
    return Verdict(is_safe=word == "no")


def _top(token: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return cast("Iterable[Mapping[str, Any]]", token.get("top") or ())


def verdict_schema(rule: Guard) -> dict[str, Any]:
    """The JSON schema to which a guard of the format json is held."""
    name: dict[str, Any] = {"type": "string", "maxLength": _LONGEST_CATEGORY}
    if rule.categories:
        name = {"enum": list(rule.categories)}
    most = min(_MOST_NAMED, len(rule.categories) or _MOST_NAMED)
    return {"anyOf": [_record_schema(True, {"maxItems": 0}), _record_schema(False, {"items": name, "maxItems": most})]}


def _record_schema(is_safe: bool, categories: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"safe": {"const": is_safe}, "categories": {"type": "array", **categories}},
        "required": ["safe", "categories"],
        "additionalProperties": False,
    }


def _json(text: str) -> Verdict:
    fenced = _FENCE.match(text)
    try:
        found = json.loads(fenced[1] if fenced is not None else text)
    except (ValueError, RecursionError):
        raise _unreadable('expected JSON such as {"safe": true, "categories": []}', text) from None
    record: Mapping[str, Any] = cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
    is_safe, named = record.get("safe"), record.get("categories", [])
    if not isinstance(is_safe, bool) or not isinstance(named, list):
        raise _unreadable('expected a record of "safe", true or false, and "categories", a list', text)
    categories = _categories(str(one) for one in cast("list[Any]", named) if str(one).strip())
    if is_safe and categories:
        raise _unreadable("it is called safe, and has categories", text)
    return Verdict(is_safe=is_safe, categories=categories)


def _categories(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one[:_LONGEST_CATEGORY] for one in names))[:_MOST_CATEGORIES]


def _unreadable(why: str, text: str) -> Unreadable:
    shown = text.strip()
    return Unreadable(f"{why}; found {shown[:_SHOWN]!r}{'…' if len(shown) > _SHOWN else ''}")
