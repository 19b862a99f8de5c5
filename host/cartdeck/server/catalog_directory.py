"""Owns what a catalog's names mean to a server: the model, its defaults for one cap, and what stands in for it.

It does not know requests. A catalog that changes is read anew by `refresh`; one that is broken then changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cartdeck.catalog.catalog import Named
from cartdeck.catalog.catalog_file import load_catalog
from cartdeck.catalog.changes import Change, changes
from cartdeck.catalog.choosing import arguments_of, ranked
from cartdeck.catalog.entry import Capability, Profile, Scaling
from cartdeck.catalog.this_machine import this_machine
from cartdeck.server.directory import Kind, ModelDirectory, ServedModel
from cartdeck.server.external.place import Place
from cartdeck_protocol.caps import load_shared_definition
from cartdeck_protocol.errors import CartdeckError, Code, failure

_KINDS: Final = {
    Capability.CHAT: Kind.CHAT,
    Capability.TOOLS: Kind.CHAT,
    Capability.VISION: Kind.CHAT,
    Capability.COMPLETION: Kind.COMPLETION,
    Capability.EMBEDDINGS: Kind.EMBEDDING,
    Capability.SPEECH: Kind.TRANSCRIPTION,
}


class CatalogDirectory:
    """The models of a catalog before those of another directory, whose names count where the catalog has none."""

    def __init__(self, path: Path, behind: ModelDirectory) -> None:
        """Raises BAD_ARGUMENT or FILE_NOT_FOUND as `load_catalog`."""
        self._path = path
        self._behind = behind
        self._machine = this_machine()
        self._mark = _mark_of(path)
        self._catalog = load_catalog(path)

    @property
    def path(self) -> Path:
        """The catalog's file."""
        return self._path

    def find(self, name: str, kind: Kind) -> ServedModel:
        try:
            named = self._catalog.find(name)
        except CartdeckError as unknown:
            return self._find_behind(name, kind, unknown)
        first, *others = self._ways(named, kind)
        if kind not in first.kinds:
            can = ", ".join(dict.fromkeys(first.kinds))
            message = f"The model {name} is none for {kind.cap}; it can be asked for: {can}."
            raise failure(Code.UNSUPPORTED, message, argument="model")
        return replace(first, stand_ins=tuple(one for one in others if kind in one.kinds))

    def models(self) -> Sequence[ServedModel]:
        own = [self._served(one, None, self._best(one)) for one in self._catalog.models()]
        taken = {name for one in own for name in (one.name, *one.aliases)}
        return [*own, *(one for one in self._behind.models() if one.name not in taken)]

    def scaled(self) -> list[tuple[ServedModel, Scaling]]:
        """The models that are run here, and when each is held in memory."""
        local = [one for one in self._catalog.models() if one.adapter is None and one.entry.source is not None]
        return [(self._served(one, None, self._best(one)), one.entry.scaling) for one in local]

    def refresh(self) -> list[Change]:
        """What changed since the file was read, when it was written anew. Raises BAD_ARGUMENT for a file that is not
        sound, once for each time that it is written; what was read before stays in force then."""
        mark = _mark_of(self._path)
        if mark == self._mark:
            return []
        self._mark = mark
        catalog = load_catalog(self._path)
        found = changes(self._catalog, catalog, self._machine)
        self._catalog = catalog
        return found

    def _find_behind(self, name: str, kind: Kind, unknown: CartdeckError) -> ServedModel:
        try:
            return self._behind.find(name, kind)
        except CartdeckError as error:
            raise (unknown if error.code is Code.MODEL_NOT_FOUND and self._catalog.entries else error) from None

    def _ways(self, named: Named, kind: Kind) -> Iterator[ServedModel]:
        """The model in each profile that fits, best first, then each model that it falls back to in its best one."""
        for profile in ranked(named.entry, self._machine) or [None]:
            yield self._served(named, kind, profile)
        for other in named.entry.fallback:
            stand_in = self._catalog.find(other)
            yield self._served(stand_in, kind, self._best(stand_in))

    def _best(self, named: Named) -> Profile | None:
        return next(iter(ranked(named.entry, self._machine)), None)

    def _served(self, named: Named, kind: Kind | None, profile: Profile | None) -> ServedModel:
        entry = named.entry
        arguments = {} if kind is None else arguments_of(named, profile)
        if kind is not None:  # one entry is for several caps: each takes what it knows
            known = load_shared_definition(kind.cap).arguments
            arguments = {key: value for key, value in arguments.items() if key in known}
        is_adapter = named.adapter is not None
        return ServedModel(
            named.name,
            entry.source or "",
            tuple(dict.fromkeys(_KINDS[one] for one in entry.capabilities)),
            backend=entry.backend,
            arguments=arguments,
            aliases=() if is_adapter else entry.aliases,
            description=named.adapter.description if named.adapter is not None else entry.description,
            dimensions=entry.dimensions,
            created=self._mark[0] // 1_000_000_000,
            most_tokens=entry.max_tokens,
            capabilities=frozenset(entry.capabilities),
            place=_place_of(named),
        )


def _place_of(named: Named) -> Place | None:
    external = named.entry.external
    if external is None:
        return None
    return Place(named.name, external.url, external.model or named.name, external.key_variable)


def _mark_of(path: Path) -> tuple[int, int, int]:
    """Another whenever the file was written: its time in ns, its size and its number."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
