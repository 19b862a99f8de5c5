"""Owns how much a chat template may make and do: the steps of a rendering, the size of each value before it is made.

It does not know jinja2. A template comes with a model from anywhere, and a dozen lines of one can ask for more memory
than there is: by doubling a text in a loop, by filling it up to a width, by writing one list a thousand times.
"""

import math
import re
import threading
from collections.abc import Collection, Iterable
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_TEXT_CHARACTERS: Final = 50_000_000
MOST_STEPS: Final = 2_000_000
"""Of all `range` together, of calls and attributes looked at, of items of lists that become text, in one rendering."""

WIDEST_TEXT: Final = 100_000
"""What a text may be filled up to."""
_WIDE_FORMAT: Final = re.compile(r"%[-+ #0-9.]*?(?:\d{6}|\*)|\{[^{}:]*:[^{}]*(?:\d{6}|\{)")
"""A width of six digits, or one that is an argument."""
_NUMBER: Final = re.compile(r"\d{2,5}")
_FILLING: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_SCALAR_CHARACTERS: Final = 32
_LARGEST_NUMBER_BITS: Final = 10_000
_GROWTH_OF_QUOTING: Final = 2


class Steps(threading.local):
    """How many steps the rendering on this thread has left."""

    left = MOST_STEPS

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise unusable(f"it takes more than {MOST_STEPS:,} steps")

    def begin(self) -> None:
        self.left = MOST_STEPS


steps: Final = Steps()


def unusable(why: str) -> CartdeckError:
    """The error for a template that cannot be used."""
    message = f"the model's chat template cannot be used: {why[:300]}; chat-template takes another one"
    return failure(Code.UNSUPPORTED, message, argument="chat-template", phase="inference")


def check_size(size: float) -> None:
    """Raises for a value of so many characters or items."""
    if size > LONGEST_TEXT_CHARACTERS:
        raise unusable("it makes something far too large")


def weight(value: Any) -> int:
    """About how many characters `value` has as text; what is in a list counts as often as it is there. It is told no
    further than what is too much."""
    total, open_values = 0, [value]
    while open_values and total <= LONGEST_TEXT_CHARACTERS:
        one: Any = open_values.pop()
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, _CONTAINERS):
            held = cast("Collection[Any]", one)
            steps.take(len(held))
            total += 2 * len(held)
            open_values.extend(held)
            if isinstance(held, dict):
                open_values.extend(cast("dict[Any, Any]", held).values())
        else:
            total += _SCALAR_CHARACTERS
    return total


def joined(pieces: Iterable[str]) -> str:
    """The pieces of an output as one text."""
    found, size = list[str](), 0
    for piece in pieces:
        size += len(piece)
        check_size(size)
        found.append(piece)
    return "".join(found)


def check_widths(*values: Any) -> None:
    """Raises for a number that is a width beyond any that a text is to be filled up to."""
    if any(isinstance(value, int) and abs(value) > WIDEST_TEXT for value in values):
        raise unusable("it makes something far too large")


def check_format(text: str) -> None:
    """Raises for a format with such a width in it, or with many that are too much together."""
    if _WIDE_FORMAT.search(text):
        raise unusable("it makes something far too large")
    check_size(sum(int(match[0]) for match in _NUMBER.finditer(text)))


def check_formatted(text: str, values: Any, *, mark: str) -> None:
    """Raises for what a format makes of `values`, which may stand at every `mark`."""
    check_format(text)
    check_size(len(text) + text.count(mark) * weight(values))


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raises for `left operator right` that would be too large, for the operators + * ** %."""
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if operator == "%":
        if isinstance(left, str):
            check_format(left)
            check_size(len(left) + (left.count("%") if isinstance(right, dict) else 1) * weight(right))
    elif operator == "+":
        if not are_numbers:
            check_size(_size(left) + _size(right))
    elif operator == "**":
        base, exponent = abs(_size(left)), _size(right)
        if base > 1 and exponent * math.log2(base) > math.log2(LONGEST_TEXT_CHARACTERS):
            raise unusable("it makes something far too large")
    elif not are_numbers:
        check_size(_size(left) * _size(right))
    elif isinstance(left, int) and isinstance(right, int) and _bits(left) + _bits(right) > _LARGEST_NUMBER_BITS:
        raise unusable("it makes something far too large")


def _bits(value: int) -> int:
    return value.bit_length()


def _size(value: Any) -> float:
    if isinstance(value, int | float):
        return abs(value)
    return len(value) if hasattr(value, "__len__") else 1


def check_replaced(text: Any, old: Any, new: Any) -> None:
    """Raises for a text that is too large with `new` for each `old` in it."""
    count = text.count(old) if isinstance(text, bytes) else str(text).count(str(old))
    check_size(len(text) + count * len(new))


def check_method(text: str | bytes, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises for a method of a text whose result would be too large."""
    if name in _FILLING:
        check_widths(*arguments, *named.values())
    if name == "join":
        check_size(weight(list(arguments)) * max(1, len(text)) if len(text) > 1 else weight(list(arguments)))
    elif name == "replace" and len(arguments) >= 2:
        check_replaced(text, arguments[0], arguments[1])
    elif name == "expandtabs":
        width = next((one for one in (*arguments, *named.values()) if isinstance(one, int)), 8)
        check_size(len(text) + len(text) * abs(width) if text else 0)
    elif name in ("format", "format_map") and isinstance(text, str):
        check_formatted(text, [*arguments, named], mark="{")
    elif name == "translate":
        check_size(len(text) * max(1, weight(list(arguments))))


def check_quoted(value: Any) -> None:
    """Raises for a value too large to be written with its quotes and escapes."""
    check_size(_GROWTH_OF_QUOTING * weight(value))
