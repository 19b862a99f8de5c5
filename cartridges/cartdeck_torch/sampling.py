"""Owns the settings of one text: what each may be, and how they come out of a request's arguments.

It does not know how a token is drawn.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

LARGEST_SEED: Final = 0xFFFF_FFFE
MOST_STOPS: Final = 32
LONGEST_STOP: Final = 1000
MOST_BIASES: Final = 1024

Argument = Callable[[str], Any]


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
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    json_schema: dict[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token is taken as the model gives it."""
        return self.temperature == 0 and not self.has_penalties and not self.logit_bias

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that came before count."""
        return self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


def read_settings(argument: Argument) -> SamplingSettings:
    """The settings from a request, `argument(name)` being its typed values; a seed is drawn when none is given.

    Raises `BAD_ARGUMENT` that names the argument, what was found and what is wanted.
    """
    seed = argument("seed")
    return SamplingSettings(
        max_tokens=argument("max-tokens"),
        temperature=_number("temperature", argument),
        top_k=argument("top-k"),
        top_p=_number("top-p", argument),
        min_p=_number("min-p", argument),
        repeat_penalty=_number("repeat-penalty", argument),
        seed=secrets.randbelow(LARGEST_SEED + 1) if seed is None else seed,
        stop=_stop_texts(argument("stop")),
        frequency_penalty=_number("frequency-penalty", argument),
        presence_penalty=_number("presence-penalty", argument),
        logit_bias=_biases(argument("logit-bias")),
        json_schema=argument("json-schema"),
    )


def _number(name: str, argument: Argument) -> float:
    value = argument(name)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _refused(name, value, "a number")
    return float(value)


def _stop_texts(value: Any) -> tuple[str, ...]:
    texts: list[Any] = [] if value is None else [value] if isinstance(value, str) else list(value)
    if len(texts) > MOST_STOPS:
        raise _refused("stop", f"{len(texts)} texts", f"at most {MOST_STOPS}")
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            raise _refused("stop", text, f"texts of 1 to {LONGEST_STOP} characters")
    return tuple(dict.fromkeys(texts))


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    biases = cast("dict[str, Any]", value or {})
    if len(biases) > MOST_BIASES:
        raise _refused("logit-bias", f"{len(biases)} tokens", f"at most {MOST_BIASES}")
    found: list[tuple[int, float]] = []
    for token, bias in biases.items():
        if not token.isascii() or not token.isdigit() or type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise _refused("logit-bias", {token: bias}, "numbers of tokens, and -100 to 100 for each")
        found.append((int(token), float(bias)))
    return tuple(found)


def _refused(name: str, found: Any, wanted: str) -> CartdeckError:
    return failure(Code.BAD_ARGUMENT, f"{name}: found {found!r:.100}, expected {wanted}", argument=name)
