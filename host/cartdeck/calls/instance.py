"""Owns the canonical form of instance arguments: what makes two calls share a loaded thing.

It does not know sessions or routing.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cartdeck_protocol.caps import CapDefinition, decode_value


class InstanceForm:
    """The canonical text of one cap's instance arguments.

    A default is left out where all caps of the cartridge that have the argument agree on it: then a call that spells
    it out, and a call of a cap that lacks the argument (tokenize has no context-size), share the instance. A default
    on which they differ (the model of two different tasks) is always in.
    """

    __slots__ = ("_agreed", "arguments", "required")

    def __init__(self, definition: CapDefinition, agreed: Mapping[str, Any]) -> None:
        self.arguments = definition.instance_arguments
        self.required = frozenset(one.name for one in definition.arguments.values() if one.required)
        """What a call of this cap must be given, instance arguments or not: looked at for each call."""
        self._agreed = agreed

    def text(self, encoded: Mapping[str, bytes]) -> str:
        """Sorted JSON of what differs from the defaults; "" when nothing does. `encoded` is by short name."""
        values: dict[str, Any] = {}
        for one in self.arguments:
            data = encoded.get(one.name)
            value = one.default if data is None else decode_value(one, data)
            if value is not None and (one.name not in self._agreed or self._agreed[one.name] != value):
                values[one.name] = value.hex() if isinstance(value, bytes) else value
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":")) if values else ""


def instance_forms(definitions: Iterable[CapDefinition]) -> dict[str, InstanceForm]:
    """The forms of all caps of one cartridge, by alias."""
    by_alias = {definition.alias: definition for definition in definitions}
    defaults: dict[str, list[Any]] = {}
    for definition in by_alias.values():
        for one in definition.instance_arguments:
            defaults.setdefault(one.name, []).append(one.default)
    agreed = {name: found[0] for name, found in defaults.items() if all(value == found[0] for value in found)}
    return {alias: InstanceForm(definition, agreed) for alias, definition in by_alias.items()}
