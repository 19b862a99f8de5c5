"""Owns the samples of a manifest: for a cap, arguments with which its author says that it can be tried out.

It does not know who tries it. A sample is plain data, as TOML and JSON hold it; what has no form there, the bytes of a
file, is written as a data URL.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final, cast

from cartdeck_protocol.caps.argument import ArgumentDefinition, ValueKind
from cartdeck_protocol.caps.definition import CapDefinition
from cartdeck_protocol.caps.values import check_value, encode_value
from cartdeck_protocol.errors import Code, failure

Sample = dict[str, Any]
"""Argument → plain value; for an argument that is a sequence, the list of its items."""

_DATA_URL: Final = "data:"
_BASE64: Final = ";base64"


def check_sample(definition: CapDefinition, sample: Mapping[str, Any]) -> None:
    """Raise UNKNOWN_ARGUMENT, MISSING_ARGUMENT or BAD_ARGUMENT unless a call of `definition` could be made with it."""
    for name, value in sample.items():
        argument = definition.argument(name)
        if argument.is_sequence:
            sample_items(argument, value)
        else:
            sample_bytes(argument, value)
    definition.check_complete({definition.argument(name).name for name in sample})


def sample_bytes(argument: ArgumentDefinition, value: Any) -> bytes:
    """The bytes that a plain value stands for. For an argument of bytes it is a text, whose UTF-8 is meant, or a data
    URL in base64 (`data:image/png;base64,…`). BAD_ARGUMENT for another one."""
    return encode_value(argument, _plain(argument, value))


def sample_items(argument: ArgumentDefinition, value: Any) -> list[Any]:
    """The items that a plain list stands for, each checked. BAD_ARGUMENT for what is no list, and for a wrong item."""
    if not isinstance(value, list):
        raise failure(
            Code.BAD_ARGUMENT,
            f"{argument.name}: found {type(value).__name__}, expected a list: the items of a sequence",
            argument=argument.name,
        )
    return [check_value(argument, _plain(argument, item)) for item in cast("list[Any]", value)]


def plain_bytes(data: bytes) -> str:
    """The plain value that stands for `data` in a sample: a text that it is, else a data URL in base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = _DATA_URL
    if not text.startswith(_DATA_URL):
        return text
    return f"{_DATA_URL}application/octet-stream{_BASE64},{base64.b64encode(data).decode()}"


def _plain(argument: ArgumentDefinition, value: Any) -> Any:
    if argument.kind is not ValueKind.BYTES or not isinstance(value, str):
        return value
    head, comma, data = value.partition(",")
    if not (comma and head.startswith(_DATA_URL) and head.endswith(_BASE64)):
        return value.encode()
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise failure(
            Code.BAD_ARGUMENT, f"{argument.name}: the data URL is no base64: {error}", argument=argument.name
        ) from None
