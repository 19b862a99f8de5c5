"""Owns what one call of a mapped step gave, checked: an entry of each output that is wanted.

It does not know items, nor when the calls are made.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from cartdeck.events import Result
from cartdeck.plans.conformance import Conformance, unlike_input
from cartdeck_protocol.caps import CapDefinition


class Parts(tuple[Any, ...]):
    """What a call gave of several outputs, in the order in which they are wanted."""

    __slots__ = ()


def part_of(result: Any, number: int) -> Any:
    """Of a result with several outputs the part of one; of such results in lists, as a deeper map has them, of each.
    What is absent is so for every output."""
    if type(result) is Parts:
        return result[number]
    if isinstance(result, list):
        return [part_of(one, number) for one in cast("list[Any]", result)]
    return result


class CallOutput:
    """The outputs that are wanted of a call; the main one if none is."""

    __slots__ = ("_conformances", "_definition", "names")

    def __init__(
        self, definition: CapDefinition, conformances: Mapping[str, Conformance], wanted: Iterable[str]
    ) -> None:
        self.names = tuple(wanted) or ("",)
        self._definition = definition
        self._conformances = conformances

    def entry_of(self, result: Result, arguments: Mapping[str, Any]) -> Any:
        """Bytes, or a list of items; of several outputs `Parts`. Raises BAD_OUTPUT."""
        if len(self.names) == 1:
            return self._one(self.names[0], result, arguments)
        return Parts(self._one(name, result, arguments) for name in self.names)

    def split(self, entry: Any) -> dict[str, Any]:
        """What `entry_of` gave, by output."""
        return dict(zip(self.names, entry if type(entry) is Parts else (entry,), strict=True))

    def joined(self, entries: list[Any]) -> Any:
        """What `split` takes apart."""
        return entries[0] if len(entries) == 1 else Parts(entries)

    def _one(self, name: str, result: Result, arguments: Mapping[str, Any]) -> bytes | list[Any]:
        conformance = self._conformances.get(name)
        if conformance is None:
            return b""
        if conformance.is_sequence:
            items = result.items_of(name)
            for one in items:
                conformance.check_item(one)
            return items
        data = result.output(name)
        if not conformance.is_free:
            conformance.check_whole(data)
        if not name and self._definition.urn.effect == "none":
            self._check_effect(arguments, data)
        return data

    def _check_effect(self, arguments: Mapping[str, Any], entry: bytes) -> None:
        main = self._definition.main_argument
        given: Any = None if main is None else arguments.get(main.name)
        given = given.encode() if isinstance(given, str) else given
        if isinstance(given, bytes) and given != entry:
            raise unlike_input(self._definition.alias)
