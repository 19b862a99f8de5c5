"""Owns what a text on a command line says of the items of a sequence: one item, or, as a JSON list, all of them.

It does not know options or files.
"""

import json
from typing import Any, cast

from cartdeck_protocol.caps.argument import ArgumentDefinition, ValueKind
from cartdeck_protocol.caps.values import check_value, decode_value, encode_value


def item_of_text(argument: ArgumentDefinition, text: str) -> Any:
    """The item that `text` spells, `8` a number where numbers are wanted. BAD_ARGUMENT for what is none."""
    return decode_value(argument, encode_value(argument, text))


def items_of_text(argument: ArgumentDefinition, text: str) -> list[Any]:
    """The items that one text spells, where it is all that was given: those of a JSON list, else itself alone.

    A list is one item where an item may be a list itself, or bytes; and for texts, where it holds anything but texts.
    Who means the text `["a"]` writes `["[\\"a\\"]"]`. BAD_ARGUMENT for a wrong item.
    """
    is_scalar = argument.kind not in (ValueKind.BYTES, ValueKind.JSON)
    if (is_scalar or (argument.is_record and not argument.is_list)) and text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list):
            items = cast("list[Any]", listed)
            if argument.kind is not ValueKind.TEXT or all(isinstance(one, str) for one in items):
                return [check_value(argument, one) for one in items]
    return [item_of_text(argument, text)]
