"""Owns what a catalog's names mean to a server: the model, its defaults for one cap, and what stands in for it.

It does not know requests. A catalog that changes is read anew by `refresh`; one that is broken then changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cartdeck.catalog.catalog import Catalog, Named
from cartdeck.catalog.catalog_file import load_catalog
from cartdeck.catalog.changes import Change, changes
from cartdeck.catalog.choosing import arguments_of, ranked
from cartdeck.catalog.entry import Capability, Profile, Scaling
from cartdeck.catalog.this_machine import this_machine
from cartdeck.pool.priority import Priority
from cartdeck.server.external.place import Place
from cartdeck.server.models.directory import DEFAULT_NAME, Kind, ModelDirectory, ServedGuard, ServedModel
from cartdeck.server.models.pin import pins_of
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


@dataclass(frozen=True, slots=True)
class Scaled:
    """One model that is run here: as it is asked for the kind that it is loaded by."""

    model: ServedModel
    kind: Kind
    scaling: Scaling
    is_guard: bool = False


class CatalogDirectory:
    """The models of a catalog before those of another directory, whose names count where the catalog has none."""

    def __init__(self, path: Path, behind: ModelDirectory, *, may_go_around: bool = False) -> None:
        """With `may_go_around` models that are not of the catalog can be asked also where those of it are guarded.

        Raises BAD_ARGUMENT or FILE_NOT_FOUND as `load_catalog`.
        """
        self._path = path
        self._behind = behind
        self._may_go_around = may_go_around
        self._machine = this_machine()
        self._mark = _mark_of(path)
        self._catalog = load_catalog(path)

    @property
    def path(self) -> Path:
        """The catalog's file."""
        return self._path

    @property
    def is_guarded(self) -> bool:
        return any(entry.guards for entry in self._catalog.entries.values())

    def find(self, name: str, kind: Kind) -> ServedModel:
        try:
            named = self._catalog.find(name)
        except CartdeckError as unknown:
            return self._find_behind(name, kind, unknown)
        if self._catalog.is_hidden(named):
            raise self._catalog.unknown(name)
        first, *others = self._ways(named, kind)
        if kind not in first.kinds:
            can = ", ".join(dict.fromkeys(first.kinds))
            message = f"The model {name} is none for {kind.cap}; it can be asked for: {can}."
            capability = next(one for one, of in _KINDS.items() if of is kind)
            remedy = (
                f'Ask it for {can}, or, if it can do this too, add "{capability}" to the capabilities of '
                f"{first.name} in the catalog."
            )
            raise failure(Code.UNSUPPORTED, message, argument="model", details={"remedy": remedy})
        return replace(first, stand_ins=tuple(one for one in others if kind in one.kinds))

    def find_in(self, name: str, kind: Kind, *, profile: str) -> ServedModel:
        """The model in that profile, without others that stand in. Raises what `find` raises, and BAD_ARGUMENT for a
        profile that it has not, or that does not fit this machine."""
        self.find(name, kind)
        named = self._catalog.find(name)
        chosen = next((one for one in named.entry.profiles if one.name == profile), None)
        if chosen is None:
            known = ", ".join(one.name for one in named.entry.profiles)
            message = f"The model {name} has no profile {profile[:200]!r}; it has {known or 'none'}."
            raise failure(Code.BAD_ARGUMENT, message, argument="profile")
        if (why := self._machine.lacks(chosen)) is not None:
            message = f"The profile {profile} of {name} does not fit this machine: {why}."
            raise failure(Code.BAD_ARGUMENT, message, argument="profile")
        return self._served(named, kind, chosen)

    def models(self) -> Sequence[ServedModel]:
        own = [self._served(one, None, self._best(one)) for one in self._catalog.visible()]
        taken = {name for one in own for name in (one.name, *one.aliases)}
        return [*own, *(one for one in self._behind.models() if one.name not in taken and not self._is_closed(one))]

    def scaled(self) -> list[Scaled]:
        """The models that are run here, and when each is held in memory: the guards of others always."""
        guards = [self._guard(name) for name in self._guards_in_use()]
        local = [one for one in self._catalog.visible() if one.adapter is None and one.entry.source is not None]
        return [
            *(Scaled(one.model, one.kind, Scaling(mode="kept"), is_guard=True) for one in guards),
            *(self._scaled(one) for one in local),
        ]

    def _scaled(self, named: Named) -> Scaled:
        kinds = [_KINDS[one] for one in named.entry.capabilities]
        kind = next((one for one in kinds if one is not Kind.TRANSCRIPTION), Kind.TRANSCRIPTION)
        return Scaled(self._served(named, kind, self._best(named)), kind, named.entry.scaling)

    def _guards_in_use(self) -> Iterable[str]:
        return dict.fromkeys(guard for entry in self._catalog.entries.values() for guard in entry.guards)

    def _guard(self, name: str) -> ServedGuard:
        rule = self._catalog.guards[name]
        kind = _KINDS[rule.capability]
        named = self._catalog.guard_model(name)
        model = self._served(named, kind, self._best(named))
        return ServedGuard(name, rule, replace(model, name=name, priority=Priority.HELD, is_listed=False), kind)

    def _is_closed(self, model: ServedModel) -> bool:
        """Whether a model that the catalog does not name would lead around its guards, or to one of them."""
        if self._may_go_around or not self.is_guarded:
            return False
        guarded = [entry.source for entry in self._catalog.entries.values() if entry.guards]
        own = [self._catalog.guard_model(name).entry.source for name in self._guards_in_use()]
        return not model.is_listed or model.spec in (*guarded, *own)

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

    def adopt(self, catalog: Catalog) -> None:
        """That catalog is what this server itself wrote just now: nothing that need be told."""
        self._mark = _mark_of(self._path)
        self._catalog = catalog

    def _find_behind(self, name: str, kind: Kind, unknown: CartdeckError) -> ServedModel:
        try:
            found = self._behind.find(name, kind)
        except CartdeckError as error:
            lacks_default = name == DEFAULT_NAME and "near" not in error.details
            is_unknown = error.code is Code.MODEL_NOT_FOUND and not lacks_default
            raise (unknown if is_unknown and self._catalog.entries else error) from None
        if self._is_closed(found):
            raise unknown if found.is_listed else _closed(name)
        return found

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
        sources: dict[str, Any] = {"model": entry.source or "", **arguments}
        pins = [one for one in pins_of(self._catalog, named, self) if one.argument in sources]
        for pin in pins:
            sources = pin.applied(sources, pin.spec)
        spec = str(sources.pop("model"))
        is_adapter = named.adapter is not None
        return ServedModel(
            named.name,
            spec,
            tuple(dict.fromkeys(_KINDS[one] for one in entry.capabilities)),
            backend=entry.backend,
            arguments=sources,
            aliases=() if is_adapter else entry.aliases,
            description=named.adapter.description if named.adapter is not None else entry.description,
            dimensions=entry.dimensions,
            created=self._mark[0] // 1_000_000_000,
            most_tokens=entry.max_tokens,
            priority=Priority[entry.importance.upper()],
            guards=() if kind is None else tuple(self._guard(name) for name in entry.guards),
            capabilities=frozenset(entry.capabilities),
            place=_place_of(named),
            pins=tuple(pins),
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


def _closed(spec: str) -> CartdeckError:
    message = (
        f"{spec[:200]!r} is no name of the catalog, and a spec in its place would go around the catalog's guards; ask "
        "for a model by its name, or let the server be started with --allow-unguarded."
    )
    return failure(Code.MODEL_NOT_FOUND, message, argument="model", details={"near": []})
