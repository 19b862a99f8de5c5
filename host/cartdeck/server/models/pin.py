"""Owns what a catalog says of the files of one source: where its origin is kept, and the spec that is loaded by it.

It does not know how files are looked at, nor who waits for them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cartdeck.adding.repository import Repository, parse_repository
from cartdeck.catalog.catalog import Catalog, Named
from cartdeck.catalog.entry import Origin
from cartdeck.catalog.origin import pinned_record
from cartdeck_protocol.errors import CartdeckError


class Catalogued(Protocol):
    """What has the catalog in force."""

    @property
    def path(self) -> Path: ...

    def adopt(self, catalog: Catalog) -> None: ...


@dataclass(frozen=True, slots=True)
class Pin:
    """One source that a call loads. `keys` is where its origin stands in the catalog, or will; `source` is as it is
    written there, `argument` the one of the call that takes it."""

    keys: tuple[str, ...]
    source: str
    origin: Origin | None
    home: Catalogued
    argument: str = "model"

    @property
    def name(self) -> str:
        """Whose it is."""
        return self.keys[1] if self.argument != "lora" else self.keys[3]

    @property
    def spec(self) -> str:
        """The source, at the revision and with the file of its first download."""
        return self.source if self.origin is None else pinned_spec(self.source, self.origin)

    def applied(self, arguments: Mapping[str, Any], spec: str) -> dict[str, Any]:
        """The arguments of a call with that spec in the place of the source, where they have it."""
        if self.argument not in arguments:
            return dict(arguments)
        value: Any = spec
        if self.argument == "lora":
            value = [{**one, "model": spec} for one in arguments["lora"]]
        return {**arguments, self.argument: value}

    def written(self, catalog: Catalog) -> Origin | None:
        """Its origin in that catalog; None where there is none, or one of another source."""
        found = next((one for one in _sources(catalog, self.keys[1]) if one[0] == self.keys), None)
        return None if found is None or found[1] != self.source else found[2]


_Source = tuple[tuple[str, ...], str | None, Origin | None, str]
"""The keys of an origin, the source, what it is, and the argument that takes the source."""


def _sources(catalog: Catalog, name: str) -> Iterator[_Source]:
    """All sources of the model of that name, and of the guard."""
    if (entry := catalog.entries.get(name)) is not None:
        yield ("models", name, "origin"), entry.source, entry.origin, "model"
        yield ("models", name, "projector_origin"), entry.projector, entry.projector_origin, "projector"
        for own, adapter in entry.lora.items():
            yield ("models", name, "lora", own, "origin"), adapter.source, adapter.origin, "lora"
    if (guard := catalog.guards.get(name)) is not None:
        yield ("guards", name, "origin"), guard.source, guard.origin, "model"


def pins_of(catalog: Catalog, named: Named, home: Catalogued) -> tuple[Pin, ...]:
    """Of a model, or an adapter on one, or a guard with a source of its own: its sources that come from elsewhere."""
    owner = next((name for name, one in catalog.entries.items() if one is named.entry), None)
    table = "guards" if owner is None else "models"
    return tuple(
        Pin(keys, source, origin, home, argument)
        for keys, source, origin, argument in _sources(catalog, owner or named.name)
        if source is not None
        and is_fetched(source)
        and keys[0] == table
        and (argument != "lora" or keys[3] == named.name)
    )


def pinned_spec(source: str, origin: Origin) -> str:
    """A hub's spec at the commit of the origin, and with its one file where it names none; others as they are."""
    revision = origin.revision
    if source.startswith("{"):
        return pinned_record(source, revision)
    if (repository := _repository_in(source)) is None:
        return source
    file = repository.file
    if file is None and len(origin.files) == 1:
        file = next((path for path in origin.files if path.endswith(".gguf")), None)
    return Repository(repository.name, revision or repository.revision, file).spec


def is_fetched(source: str) -> bool:
    """Whether the files of a source come from elsewhere: a hub, or an index of packages."""
    return source.startswith(("pypi:", "{")) or _repository_in(source) is not None


def _repository_in(source: str) -> Repository | None:
    """The hub's repository that a source names; None for another kind, and for a path that is there."""
    try:
        found = parse_repository(source)
    except CartdeckError:
        return None
    return found if source.startswith("hf:") or not Path(source).exists() else None
