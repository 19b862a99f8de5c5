"""Owns the settings of one request for text: what each may be, and how they come out of a request's arguments.

It does not know how a token is drawn.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_protocol.errors import Code, failure

LARGEST_SEED: Final = 0xFFFF_FFFE
"""llama.cpp takes the one above it for "draw one"."""

MOST_STOPS: Final = 32
LONGEST_STOP: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the tokens of one text are drawn, and what ends it."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int
    stop: tuple[str, ...] = ()


def read_settings(argument: Callable[[str], Any]) -> SamplingSettings:
    """The settings from a request, `argument(name)` being its typed values; a seed is drawn when none is given.

    Raises `BAD_ARGUMENT` that names the argument, what was found and which range is wanted, whatever the definition
    lets through: no value that llama.cpp does not expect reaches it.
    """
    seed = argument("seed")
    return SamplingSettings(
        max_tokens=_integer("max-tokens", argument, 1, 2**31 - 1),
        temperature=_number("temperature", argument, 0.0, 100.0),
        top_k=_integer("top-k", argument, 0, 2**31 - 1),
        top_p=_number("top-p", argument, 0.0, 1.0),
        min_p=_number("min-p", argument, 0.0, 1.0),
        repeat_penalty=_number("repeat-penalty", argument, 0.01, 100.0),
        seed=secrets.randbelow(LARGEST_SEED + 1) if seed is None else _integer("seed", argument, 0, LARGEST_SEED),
        stop=_stop_texts(argument("stop")),
    )


def _integer(name: str, argument: Callable[[str], Any], low: int, high: int) -> int:
    value = argument(name)
    if type(value) is not int or not low <= value <= high:
        raise _refused(name, value, f"a whole number from {low} to {high}")
    return value


def _number(name: str, argument: Callable[[str], Any], low: float, high: float) -> float:
    value = argument(name)
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise _refused(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _stop_texts(value: Any) -> tuple[str, ...]:
    texts: list[Any] = [] if value is None else [value] if isinstance(value, str) else list(value)
    if len(texts) > MOST_STOPS:
        raise _refused("stop", f"{len(texts)} texts", f"at most {MOST_STOPS}")
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            raise _refused("stop", text, f"texts of 1 to {LONGEST_STOP} characters")
    return tuple(dict.fromkeys(texts))


def _refused(name: str, found: Any, wanted: str) -> Exception:
    return failure(Code.BAD_ARGUMENT, f"{name}: found {found!r:.100}, expected {wanted}", argument=name)
