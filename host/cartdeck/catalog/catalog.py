"""Owns the catalog as a whole: which names there are, and that everything in it fits together.

It does not know where it is kept, nor which models are loaded.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from cartdeck.catalog.consistency import problems
from cartdeck.catalog.entry import Adapter, Entry, Name
from cartdeck.catalog.guard import Guard
from cartdeck.catalog.guard_consistency import guard_problems
from cartdeck.near import near_names
from cartdeck_protocol.errors import CartdeckError, Code, failure

Tables = TypeVar("Tables")
_LONGEST_SHOWN: Final = 120
_MOST_SHOWN: Final = 8
_LONGEST_FILE: Final = 16 * 1024 * 1024
_ENTRIES: Final = TypeAdapter(dict[Name, Entry])
_GUARDS: Final = TypeAdapter(dict[Name, Guard])


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for: a model, or an adapter on it."""

    name: str
    entry: Entry
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """Named models that were checked together."""

    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    """In the file's order."""
    guards: Mapping[str, Guard] = field(default_factory=dict[str, Guard])

    @property
    def hidden(self) -> frozenset[str]:
        """The models that are guards: clients do not see them."""
        return frozenset(one.model for one in self.guards.values() if one.model is not None)

    def guard_model(self, name: str) -> Named:
        """What a guard is run by: a model of the catalog, or, under the guard's own name, one that is its alone."""
        guard = self.guards[name]
        own = guard.own_entry()
        return Named(name, own) if own is not None else Named(str(guard.model), self.entries[str(guard.model)])

    def visible(self) -> list[Named]:
        """The models that clients may name."""
        return [one for one in self.models() if not self.is_hidden(one)]

    def is_hidden(self, named: Named) -> bool:
        return any(named.entry is self.entries[name] for name in self.hidden)

    def models(self) -> list[Named]:
        """All models, each followed by its adapters."""
        return [one for name, entry in self.entries.items() for one in _named(name, entry)]

    def find(self, name: str) -> Named:
        """The model or adapter of that name or alias. Raises MODEL_NOT_FOUND with names that are near."""
        for one in self.models():
            if one.name == name or (one.adapter is None and name in one.entry.aliases):
                return one
        raise self.unknown(name)

    def unknown(self, name: str) -> CartdeckError:
        """MODEL_NOT_FOUND for a name that is not there, or is to seem so."""
        known = [one.name for one in self.visible()]
        near = near_names(name, known)
        told = near or known[:_MOST_SHOWN]
        lead = "Near it" if near else "It has" if len(known) <= _MOST_SHOWN else "It has for instance"
        message = f"The catalog has no model {name[:_LONGEST_SHOWN]!r}."
        message += f" {lead}: {', '.join(told)}." if told else " It is empty; `cartdeck catalog add` adds one."
        return failure(Code.MODEL_NOT_FOUND, message, argument="model", details={"near": told})


def _named(name: str, entry: Entry) -> list[Named]:
    return [Named(name, entry), *(Named(own, entry, adapter) for own, adapter in entry.lora.items())]


def parse_catalog(text: str, *, origin: str) -> Catalog:
    """The catalog in a TOML text. `origin` is what an error names as the place.

    Raises BAD_ARGUMENT with the path of the first key at fault as `argument`; `details["problems"]` lists all of them.
    """
    if len(text) > _LONGEST_FILE:
        raise failure(Code.BAD_ARGUMENT, f"{origin}: more than {_LONGEST_FILE} characters are no catalog")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, or a number or a nesting without end
        raise failure(Code.BAD_ARGUMENT, f"{origin} is no TOML: {error}") from None
    if unknown := sorted(table.keys() - {"models", "guards"}):
        message = "no key of a catalog, which has tables [models.NAME] and [guards.NAME] alone"
        raise _refusal(origin, [(unknown[0], message)])
    entries = _read("models", table.get("models", {}), _ENTRIES, origin)
    guards = _read("guards", table.get("guards", {}), _GUARDS, origin)
    if found := [*problems(entries), *guard_problems(entries, guards)]:
        raise _refusal(origin, found)
    return Catalog(entries, guards)


def _read(key: str, table: Any, kind: TypeAdapter[Tables], origin: str) -> Tables:
    """All tables under one key."""
    if not isinstance(table, dict):
        raise _refusal(origin, [(key, f"expected tables [{key}.NAME]")])
    try:
        # As JSON, so that a list is a tuple, a text a choice, and nothing else is taken for what it is not.
        text = json.dumps(cast("dict[str, Any]", table), default=str)
    except (ValueError, RecursionError) as error:
        raise _refusal(origin, [(key, f"it cannot be read: {error}")]) from None
    try:
        return kind.validate_json(text)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        within = {one["loc"][:-1] for one in errors}  # a list whose items are wrong is called too short as well
        found = [_problem(key, one) for one in errors if one["type"] != "too_short" or one["loc"] not in within]
        raise _refusal(origin, found) from None


def _problem(key: str, error: Any) -> tuple[str, str]:
    path = ".".join(str(part) for part in (key, *error["loc"]) if part != "[key]")
    if error["type"] == "extra_forbidden":
        loc = [part for part in error["loc"] if part != "[key]"]
        near = near_names(str(loc[-1]), _keys(Guard if key == "guards" else Entry, loc[1:-1]))
        return path, "no key that is known here" + (f"; near it: {', '.join(near)}" if near else "")
    message = error["msg"].removeprefix("Value error, ")
    value = error["input"]
    if isinstance(value, (dict, list)):  # a whole table says nothing about what is wrong in it
        return path, message
    shown = repr(value)
    return path, f"{message}, found {shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + '…'}"


def _keys(table: type[BaseModel], path: Iterable[int | str]) -> list[str]:
    """The keys, as a file has them, of the table that `path` leads to from another one."""
    for part in path:  # numbers of a list's items and names of adapters lead no further
        found = table.model_fields.get(str(part))
        table = next(_tables(found.annotation), table) if found is not None else table
    return [field.alias or name for name, field in table.model_fields.items()]


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _tables(part)


def _refusal(origin: str, found: list[tuple[str, str]]) -> CartdeckError:
    path, message = found[0]
    more = f" ({len(found) - 1} more: `cartdeck catalog check` lists them)" if len(found) > 1 else ""
    details = {"problems": [{"path": one, "message": text} for one, text in found]}
    return failure(Code.BAD_ARGUMENT, f"{origin}: {path}: {message}{more}", argument=path, details=details)
