"""Owns the look at a model's files before it is loaded: written into the catalog with the first download, and compared
with what stands there later.

It does not know how a request waits for it.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cartdeck.adding.repository import Repository, parse_repository
from cartdeck.catalog.catalog import Catalog
from cartdeck.catalog.entry import Origin
from cartdeck.catalog.file_mark import FileMarks
from cartdeck.catalog.origin import Found, check_same, found_of, pinned_record
from cartdeck.engine import Engine
from cartdeck_protocol.errors import CartdeckError

_LOGGER: Final = logging.getLogger("cartdeck.server")


class Catalogued(Protocol):
    """What has the catalog in force."""

    @property
    def path(self) -> Path: ...

    def adopt(self, catalog: Catalog) -> None: ...


@dataclass(frozen=True, slots=True)
class Pin:
    """What the catalog says of a model's files. `name` is the entry's, `source` as it is written there."""

    name: str
    source: str
    origin: Origin | None
    home: Catalogued

    @property
    def spec(self) -> str:
        """The source, at the revision and with the file of its first download."""
        return self.source if self.origin is None else pinned_spec(self.source, self.origin)


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


class Origins:
    """The looks of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks = FileMarks()
        self._unpinned: set[str] = set()
        """Sources that gave nothing to write down, or whose catalog cannot be written."""

    def is_due(self, pin: Pin, cap: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the files are to be looked at before a call of `cap`: nothing is loaded of them yet."""
        if pin.origin is None:
            return pin.source not in self._unpinned
        try:
            return not self._engine.is_loaded(cap, arguments)
        except CartdeckError:  # the call itself will say so
            return False

    async def settle(self, pin: Pin, details: Mapping[str, Any]) -> str:
        """The spec to load, now that `details` say which files there are: pinned, and compared where it was before.

        Raises HASH_MISMATCH.
        """
        found = await asyncio.to_thread(found_of, details, self._marks)
        if found is None:
            self._unpinned.add(pin.source)
            return pin.source
        if pin.origin is not None:
            check_same(pin.name, pin.origin, found)
            return pin.spec
        return await self._pin(pin, found)

    async def _pin(self, pin: Pin, found: Found) -> str:
        from cartdeck.catalog.editing import pin_origin  # noqa: PLC0415  # its library edits, and nothing else needs it

        try:
            catalog = await asyncio.to_thread(pin_origin, pin.home.path, pin.name, found.table(), source=pin.source)
        except CartdeckError as error:
            self._unpinned.add(pin.source)
            _LOGGER.warning("the origin of %s is not written down: %s", pin.name, error.message)
            return pin.source
        pin.home.adopt(catalog)
        entry = catalog.entries.get(pin.name)
        if entry is None or entry.origin is None or entry.source != pin.source:  # edited meanwhile
            return pin.source
        check_same(pin.name, entry.origin, found)
        return pinned_spec(pin.source, entry.origin)
