"""Owns the way from a Python value to an argument's bytes and back, and what values an argument takes.

It does not know streams or files: one value, whole. Every fault is `BAD_ARGUMENT` (or `INVALID_TEXT`) and names the
argument, what was found and what was expected.
"""

import json
import re
from math import isfinite
from typing import Any, cast

from cartdeck_protocol.caps.argument import ArgumentDefinition, ValueKind
from cartdeck_protocol.caps.wording import describe_value, found_value
from cartdeck_protocol.errors import CartdeckError, Code, failure

# a tuple, since a union in isinstance is made anew at each call
_BYTES_LIKE: tuple[type, ...] = (bytes, bytearray, memoryview)
_LARGEST_INTEGER = 2**63 - 1
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,19}")


def encode_value(argument: ArgumentDefinition, value: Any) -> bytes:
    """The bytes of one value of `argument`, checked.

    A str is read as a command line would write it: for a number or a boolean it is parsed; for JSON it is JSON
    text, and for a JSON list of texts any str that is no JSON list is the list of that one text. Bytes for
    anything but BYTES are taken for the encoded value.
    """
    if isinstance(value, _BYTES_LIKE):
        if type(value) is bytes and argument.kind is ValueKind.BYTES:
            return value
        data = bytes(cast("bytes", value))
        return data if argument.kind is ValueKind.BYTES else _to_bytes(argument, decode_value(argument, data))
    if isinstance(value, str) and argument.kind is not ValueKind.TEXT:
        value = _from_text(argument, value)
    return _to_bytes(argument, check_value(argument, value))


def decode_value(argument: ArgumentDefinition, data: bytes) -> Any:
    """The checked value that `data` encodes: str, int, float, bool, bytes, or what JSON gives."""
    if argument.kind is ValueKind.BYTES:
        return bytes(data)
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise failure(
            Code.INVALID_TEXT,
            f"{argument.name}: byte {error.start} of {len(data)} is not valid UTF-8 ({error.reason})",
            argument=argument.name,
        ) from None
    if argument.kind is ValueKind.TEXT:
        return check_value(argument, text)
    return check_value(argument, _load(argument, text))


def check_value(argument: ArgumentDefinition, value: Any) -> Any:
    """`value` if it is one that `argument` takes, in its plain form (a number as float, a tuple as list).

    Nothing is converted from text here. Raises BAD_ARGUMENT or INVALID_TEXT.
    """
    if argument.kind is ValueKind.JSON:
        return _check_json(argument, value)
    checked = _check_scalar(argument, argument.kind, value)
    if (argument.minimum is not None and checked < argument.minimum) or (
        argument.maximum is not None and checked > argument.maximum
    ):
        raise _refusal(argument, value)
    if argument.choices and checked not in argument.choices:
        raise _refusal(argument, value)
    return checked


def _from_text(argument: ArgumentDefinition, text: str) -> Any:
    """The value that a command line's text stands for."""
    word = text.strip()
    match argument.kind:
        case ValueKind.BYTES:
            return _check_text(argument, text).encode()
        case ValueKind.INTEGER if _INTEGER_TEXT.fullmatch(word):
            return int(word)
        case ValueKind.NUMBER:
            try:
                return float(word)
            except ValueError:
                raise _refusal(argument, text) from None
        case ValueKind.BOOLEAN if word.lower() in ("true", "false"):
            return word.lower() == "true"
        case ValueKind.JSON:
            return _json_from_text(argument, text)
        case _:
            raise _refusal(argument, text)


def _json_from_text(argument: ArgumentDefinition, text: str) -> Any:
    if argument.item_kind is not ValueKind.TEXT:
        return _load(argument, text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return cast("list[Any]", value) if isinstance(value, list) else [text]


def _check_scalar(argument: ArgumentDefinition, kind: ValueKind, value: Any) -> Any:
    match kind:
        case ValueKind.TEXT if isinstance(value, str):
            return _check_text(argument, value)
        case ValueKind.INTEGER if type(value) is int and abs(value) <= _LARGEST_INTEGER:
            return value
        case ValueKind.NUMBER if type(value) is not bool and isinstance(value, int | float) and _is_finite(value):
            return float(value)
        case ValueKind.BOOLEAN if type(value) is bool:
            return value
        case ValueKind.BYTES if isinstance(value, bytes | bytearray | memoryview):
            return bytes(cast("bytes", value))
        case _:
            raise _refusal(argument, value)


def _is_finite(value: int | float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _check_text(argument: ArgumentDefinition, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise failure(
            Code.INVALID_TEXT,
            f"{argument.name}: character {error.start} is half of a surrogate pair, which UTF-8 cannot carry",
            argument=argument.name,
        ) from None
    return text


def _check_json(argument: ArgumentDefinition, value: Any) -> Any:
    plain: Any = json.loads(_dump(argument, value))
    if not argument.is_list:
        if argument.is_record and not isinstance(plain, dict):
            raise _refusal(argument, value)
        return cast("Any", plain)
    if not isinstance(plain, list):
        raise _refusal(argument, value)
    items = cast("list[Any]", plain)
    if argument.is_record and not all(isinstance(item, dict) for item in items):
        raise _refusal(argument, value)
    if argument.item_kind is None:
        return items
    return [_check_scalar(argument, argument.item_kind, item) for item in items]


def _dump(argument: ArgumentDefinition, value: Any) -> str:
    """`value` as JSON text; keys stay in their order, since a schema's order means something to some readers."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise failure(
            Code.BAD_ARGUMENT,
            f"{argument.name}: found {found_value(value)} that JSON cannot carry ({error}), "
            f"expected {describe_value(argument)}",
            argument=argument.name,
        ) from None
    return _check_text(argument, text)


def _load(argument: ArgumentDefinition, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failure(
            Code.BAD_ARGUMENT,
            f"{argument.name}: found {found_value(text)}, which is no JSON ({error}), "
            f"expected {describe_value(argument)}",
            argument=argument.name,
        ) from None


def _to_bytes(argument: ArgumentDefinition, value: Any) -> bytes:
    if argument.kind is ValueKind.BYTES:
        return value
    return (value if argument.kind is ValueKind.TEXT else _dump(argument, value)).encode()


def _refusal(argument: ArgumentDefinition, value: Any) -> CartdeckError:
    return failure(
        Code.BAD_ARGUMENT,
        f"{argument.name}: found {found_value(value)}, expected {describe_value(argument)}",
        argument=argument.name,
    )
