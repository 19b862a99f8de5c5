"""Owns what a value of one step becomes as an argument of another: bytes, text, JSON, numbers.

It does not know steps or streams. What cannot be converted raises BAD_ARGUMENT, naming the argument.
"""

import json
from pathlib import Path
from typing import Any, Final

from cartdeck.plans.graph import ABSENT
from cartdeck_protocol.caps import ArgumentDefinition, ValueKind, decode_value
from cartdeck_protocol.errors import CartdeckError

_STREAMED: Final = frozenset({ValueKind.TEXT, ValueKind.BYTES, ValueKind.JSON})


class Absent:
    """What stands where a result is missing: which step could not give it, for which item, and why."""

    __slots__ = ("error", "item", "step")

    def __init__(self, step: str, item: tuple[int, ...], error: CartdeckError) -> None:
        self.step = step
        self.item = item
        self.error = error

    def __repr__(self) -> str:
        item = f" item {'.'.join(map(str, self.item))}" if self.item else ""
        return f"<{ABSENT}: {self.step}{item}: {self.error.code_name}>"


def can_stream(argument: ArgumentDefinition) -> bool:
    """Whether the argument takes a value piece by piece."""
    return argument.is_sequence or (not argument.is_instance and argument.kind in _STREAMED)


def as_value(entry: Any, argument: ArgumentDefinition) -> Any:
    """An entry as the whole value of an argument. Bytes are the encoded value, for any kind."""
    if isinstance(entry, bytes | Path):
        return entry
    if argument.kind is ValueKind.BYTES and not isinstance(entry, str):
        return _json(entry)
    if argument.kind is ValueKind.TEXT and not isinstance(entry, str):
        return _json(entry).decode()
    return entry


def as_item(entry: Any, argument: ArgumentDefinition) -> Any:
    """An entry as one item of a sequence argument."""
    kind = argument.kind
    if isinstance(entry, Path):
        return entry
    if kind is ValueKind.BYTES:
        if isinstance(entry, bytes):
            return entry
        return entry.encode() if isinstance(entry, str) else _json(entry)
    if isinstance(entry, bytes):
        return decode_value(argument, entry)
    if kind is ValueKind.TEXT and not isinstance(entry, str):
        return _json(entry).decode()
    return entry


def size_of(entry: Any) -> int:
    """What an entry takes in memory, about."""
    if isinstance(entry, bytes | str):
        return len(entry)
    if isinstance(entry, dict | list):
        return len(repr(entry)) if len(entry) < 64 else 64 * len(entry)  # pyright: ignore[reportUnknownArgumentType] - its length is all that counts
    return 32


def _json(entry: Any) -> bytes:
    return json.dumps(entry, ensure_ascii=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
