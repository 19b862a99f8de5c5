"""Owns the bounded table that lets each URN be parsed once.

It does not know what it keeps: texts on one side, immutable values on the other.
"""

from typing import Generic, TypeVar

Value = TypeVar("Value")

LONGEST_TEXT = 1024
"""Longer texts (characters) are parsed each time, so that a peer cannot fill memory with them."""


class InternTable(Generic[Value]):
    """Texts already parsed. `known.get(text)` is the one look-up of a repeated parse.

    A full table is emptied: what is in use is back after one parse each. Values are compared by their text, so
    two of the same text, one from before and one from after, are still equal. Safe to use from several threads:
    each step is one dictionary operation.
    """

    __slots__ = ("capacity", "known")

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self.known: dict[str, Value] = {}

    def keep(self, text: str, value: Value, *, canonical: str) -> Value:
        """Remember `value` under its canonical text and under `text`; return the one value for that canon."""
        if len(text) > LONGEST_TEXT or len(canonical) > LONGEST_TEXT:
            return value
        if len(self.known) + 2 > self.capacity:
            self.known.clear()
        value = self.known.setdefault(canonical, value)
        return self.known.setdefault(text, value)
