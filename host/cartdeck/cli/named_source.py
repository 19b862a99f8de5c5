"""Owns what a name of the catalog means to the commands about files: its sources, and who else needs them.

It does not know what is kept on this machine.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from cartdeck.cli.named_model import catalog_asked, is_meant_as_spec
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck.adding.repository import Repository
    from cartdeck.catalog.catalog import Catalog, Named
    from cartdeck.cli.asking import Ask, OnData
    from cartdeck.server.models.pin import Pin

DOWNLOAD: Final = "cap:download-model"
CatalogFile: TypeAlias = Annotated[
    Path | None, typer.Option("--catalog", metavar="FILE", help="Where SPEC is a name; else this user's catalog.")
]


@dataclass(frozen=True, slots=True)
class Source:
    """Files that a model is loaded from."""

    spec: str
    pin: "Pin | None" = None
    """What they were with their first download; None for a path of this machine."""
    needed_by: tuple[str, ...] = ()
    """Other names of the catalog that are loaded from them too."""


def sources_of(name: str, catalog: Path | None) -> list[Source] | None:
    """What the model of that name is loaded from, the model itself first; None for a spec, and without a catalog.

    Raises MODEL_NOT_FOUND with names that are near, UNSUPPORTED for a model of another server, and what `load_catalog`
    raises.
    """
    path = catalog_asked(name, catalog)
    if path is None:
        if catalog is not None:
            message = f"--catalog says what names mean, and {name[:200]} is a spec."
            raise failure(Code.BAD_ARGUMENT, message, argument="--catalog")
        return None
    from cartdeck.catalog.catalog_file import load_catalog

    home = _Home(path, load_catalog(path))
    try:
        named = home.catalog.find(name)
    except CartdeckError as error:
        if is_meant_as_spec(name, error):
            return None
        raise
    if named.entry.external is not None:
        message = f"Another server answers for {name}: none of its files are here."
        raise failure(Code.UNSUPPORTED, message, argument="SPEC")
    return list(_sources(named, home))


@dataclass(slots=True)
class _Home:
    """A catalog that was read once."""

    path: Path
    catalog: "Catalog"

    def adopt(self, catalog: "Catalog") -> None:
        self.catalog = catalog


def _sources(named: "Named", home: _Home) -> Iterator[Source]:
    from cartdeck.server.models.pin import pins_of

    adapter = None if named.adapter is None else named.adapter.source
    pins = {one.source: one for one in pins_of(home.catalog, named, home)}
    needs = list(_needs(home))
    for source in (named.entry.source, named.entry.projector, adapter):
        if source is None:
            continue
        pin = pins.get(source)
        others = () if pin is None else (owner for owner, one in needs if owner != named.name and _overlap(one, pin))
        yield Source(source if pin is None else pin.spec, pin, tuple(dict.fromkeys(others)))


def _needs(home: _Home) -> "Iterator[tuple[str, Pin]]":
    """Each name of the catalog, guards too, with what comes from elsewhere for it. Of adapters their own files alone:
    whoever removes a model's files has no use for its adapters."""
    from cartdeck.server.models.pin import pins_of

    catalog = home.catalog
    guards = [catalog.guard_model(name) for name, guard in catalog.guards.items() if guard.source is not None]
    for named in [*catalog.models(), *guards]:
        for pin in pins_of(catalog, named, home):
            if named.adapter is None or pin.argument == "lora":
                yield named.name, pin


def _overlap(one: "Pin", other: "Pin") -> bool:
    """Whether two sources have files in common, as far as their specs say."""
    from cartdeck.adding.repository import repository_of

    if one.spec == other.spec or one.source == other.source:
        return True
    mine, theirs = repository_of(one.spec), repository_of(other.spec)
    if mine is None or theirs is None or mine.name != theirs.name:
        return False
    is_other_commit = mine.is_pinned and theirs.is_pinned and mine.revision != theirs.revision
    files = {_file(mine), _file(theirs)}
    return not is_other_commit and (len(files) == 1 or None in files)


def _file(repository: "Repository") -> str | None:
    """The one file that a spec names; None for a quantization, a glob, or all of a repository."""
    file = repository.file or ""
    return PurePosixPath(file).name if file.endswith(".gguf") and "*" not in file else None


async def fetched(ask: "Ask", source: Source, *, more: Mapping[str, Any], on_data: "OnData") -> dict[str, Any]:
    """The details of its files, which are here then; `more` are arguments of the download. What they are is written
    into the catalog with the first download, and compared later. Raises HASH_MISMATCH."""
    from cartdeck.server.models.origins import Origins

    result = await ask(DOWNLOAD, {"model": source.spec, "per-file": True, **more}, on_data=on_data)
    details: dict[str, Any] = json.loads(result.output("details"))
    if source.pin is not None:
        await Origins(lambda _cap, _arguments: False).settle(source.pin, details)
    return details
