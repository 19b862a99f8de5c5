"""Owns the words for values in messages and help: what an argument takes, and what was found instead.

It does not know whether a value is good.
"""

from typing import Any, cast

from cartdeck_protocol.caps.argument import ArgumentDefinition, ValueKind

_KIND_NAMES = {
    ValueKind.TEXT: "text",
    ValueKind.INTEGER: "an integer",
    ValueKind.NUMBER: "a number",
    ValueKind.BOOLEAN: "true or false",
    ValueKind.JSON: "a JSON value",
    ValueKind.BYTES: "bytes",
}
_ITEM_NAMES = {
    ValueKind.TEXT: "a JSON list of texts",
    ValueKind.INTEGER: "a JSON list of integers",
    ValueKind.NUMBER: "a JSON list of numbers",
    ValueKind.BOOLEAN: "a JSON list of booleans",
    None: "a JSON list",
}
_LONGEST = 60


def describe_value(argument: ArgumentDefinition) -> str:
    """What `argument` takes, in a few words: `an integer from 1 to 4096`, `a JSON list of texts`, `text`."""
    if argument.choices:
        return "one of " + ", ".join(_show(choice) for choice in argument.choices)
    if argument.is_record:
        return "a JSON list of records" if argument.is_list else "a JSON record"
    if argument.is_list:
        return _ITEM_NAMES[argument.item_kind]
    return _KIND_NAMES[argument.kind] + _describe_range(argument.minimum, argument.maximum)


def found_value(value: Any) -> str:
    """What `value` is, in a few words, for the "found" part of a message; long ones are cut."""
    match value:
        case None:
            return "nothing"
        case bool():
            return _show(value)
        case bytes() | bytearray() | memoryview():
            return f"{len(cast('bytes', value))} bytes"
        case str():
            return f"the text {_shorten(repr(value))}"
        case int() | float():
            return f"the number {_shorten(_show(value))}"
        case _:
            return f"the {type(value).__name__} {_shorten(_written(value))}"


def _describe_range(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {_show(minimum)} to {_show(maximum)}"
    if minimum is not None:
        return f" of at least {_show(minimum)}"
    return "" if maximum is None else f" of at most {_show(maximum)}"


def _show(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 2**63:
            return "beyond 64 bits"
        case _:
            return str(value)


def _written(value: Any) -> str:
    """Its repr; an integer of thousands of digits has none, nor has a list in a list in a list, without end."""
    try:
        return repr(value)
    except Exception as error:  # a value's own code may raise anything
        return f"without a text ({type(error).__name__})"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
