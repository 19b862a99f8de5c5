"""Owns the settings of one request for text: what each may be, and how they come out of a request's arguments.

It does not know how a token is drawn.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck_protocol.errors import Code, failure

LARGEST_SEED: Final = 0xFFFF_FFFE
"""llama.cpp takes the one above it for "draw one"; it is the same for every engine."""

MOST_STOPS: Final = 32
LONGEST_STOP: Final = 1000
MOST_BIASES: Final = 1024
LARGEST_BIAS: Final = 100.0
MOST_TEXTS: Final = 16
MOST_TOP_LOGPROBS: Final = 20

Argument = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the tokens of one request's texts are drawn, what ends them, and what is told of them."""

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
    """Tokens and what is added to their numbers."""
    grammar: str | None = None
    """GBNF; a cartridge whose engine has none refuses it."""
    json_schema: dict[str, Any] | None = None
    texts: int = 1
    """How many texts are made of the prompt, the first with the seed, each other one with the next."""
    logprobs: bool = False
    top_logprobs: int = 0
    deterministic: bool = False
    is_seeded: bool = False
    """Whether the request itself names the seed."""

    @property
    def is_repeatable(self) -> bool:
        """Whether who asks again may expect the same text: chance is left out, or its seed is named."""
        return self.deterministic or self.is_seeded or self.temperature == 0

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

    Raises `BAD_ARGUMENT` that names the argument, what was found and which range is wanted, whatever the definition
    lets through: no value that an engine does not expect reaches it.
    """
    seed = argument("seed")
    grammar, schema = argument("grammar") or None, argument("json-schema")
    if grammar is not None and schema is not None:
        raise failure(
            Code.BAD_ARGUMENT, "grammar and json-schema are both given, expected one of them", argument="json-schema"
        )
    top_logprobs = _integer("top-logprobs", argument, 0, MOST_TOP_LOGPROBS)
    return SamplingSettings(
        max_tokens=_integer("max-tokens", argument, 1, 2**31 - 1),
        temperature=_number("temperature", argument, 0.0, 100.0),
        top_k=_integer("top-k", argument, 0, 2**31 - 1),
        top_p=_number("top-p", argument, 0.0, 1.0),
        min_p=_number("min-p", argument, 0.0, 1.0),
        repeat_penalty=_number("repeat-penalty", argument, 0.01, 100.0),
        seed=secrets.randbelow(LARGEST_SEED + 1) if seed is None else _integer("seed", argument, 0, LARGEST_SEED),
        stop=_stop_texts(argument("stop")),
        frequency_penalty=_number("frequency-penalty", argument, -2.0, 2.0),
        presence_penalty=_number("presence-penalty", argument, -2.0, 2.0),
        logit_bias=_biases(argument("logit-bias")),
        grammar=grammar,
        json_schema=schema,
        texts=_integer("n", argument, 1, MOST_TEXTS),
        logprobs=bool(argument("logprobs")) or top_logprobs > 0,
        top_logprobs=top_logprobs,
        deterministic=bool(argument("deterministic")),
        is_seeded=seed is not None,
    )


def _integer(name: str, argument: Argument, low: int, high: int) -> int:
    value = argument(name)
    if type(value) is not int or not low <= value <= high:
        raise _refused(name, repr(value), f"a whole number from {low} to {high}")
    return value


def _number(name: str, argument: Argument, low: float, high: float) -> float:
    value = argument(name)
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise _refused(name, repr(value), f"a number from {low:g} to {high:g}")
    return float(value)


def _stop_texts(value: Any) -> tuple[str, ...]:
    texts: list[Any] = [] if value is None else [value] if isinstance(value, str) else list(value)
    if len(texts) > MOST_STOPS:
        raise _refused("stop", f"{len(texts)} texts", f"at most {MOST_STOPS}")
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            raise _refused("stop", repr(text), f"texts of 1 to {LONGEST_STOP} characters")
    return tuple(dict.fromkeys(texts))


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise _refused("logit-bias", repr(value), 'a record such as {"123": -100}')
    entries = cast("Mapping[Any, Any]", value)
    if len(entries) > MOST_BIASES:
        raise _refused("logit-bias", f"{len(entries)} entries", f"at most {MOST_BIASES}")
    found: dict[int, float] = {}
    for key, bias in entries.items():
        name = str(key)
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise _refused("logit-bias", repr(key), "the number of a token")
        if type(bias) not in (int, float) or not math.isfinite(bias) or abs(bias) > LARGEST_BIAS:
            raise _refused(
                "logit-bias", f"{bias!r} for the token {name}", f"a number from {-LARGEST_BIAS:g} to {LARGEST_BIAS:g}"
            )
        found[int(name)] = float(bias)
    return tuple(sorted(found.items()))


def _refused(name: str, found: str, wanted: str) -> Exception:
    return failure(Code.BAD_ARGUMENT, f"{name}: found {found:.100}, expected {wanted}", argument=name)
