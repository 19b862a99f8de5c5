"""Owns the look at the files of a source before they are loaded: written into the catalog with the first download, and
compared with what stands there later.

It does not know how a request waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from cartdeck.catalog.file_mark import FileMarks
from cartdeck.catalog.origin import Found, check_same, found_of
from cartdeck.server.models.pin import Pin, pinned_spec
from cartdeck_protocol.errors import CartdeckError

_LOGGER: Final = logging.getLogger("cartdeck.server")


class Origins:
    """The looks of one server."""

    def __init__(self, is_loaded: Callable[[str, Mapping[str, Any]], bool]) -> None:
        """`is_loaded` tells whether a call of a cap with these arguments has a process already."""
        self._is_loaded = is_loaded
        self._marks = FileMarks()
        self._unpinned: set[str] = set()
        """Sources that gave nothing to write down, or whose catalog cannot be written."""

    def is_due(self, pin: Pin, cap: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the files are to be looked at before a call of `cap`: nothing is loaded of them yet."""
        if pin.origin is None:
            return pin.source not in self._unpinned
        try:
            return not self._is_loaded(cap, arguments)
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
            check_same(pin.keys, pin.origin, found)
            return pin.spec
        return await self._pin(pin, found)

    async def _pin(self, pin: Pin, found: Found) -> str:
        from cartdeck.catalog.editing import pin_origin  # noqa: PLC0415  # its library edits, and nothing else needs it

        try:
            catalog = await asyncio.to_thread(pin_origin, pin.home.path, pin.keys, found.table(), source=pin.source)
        except CartdeckError as error:
            self._unpinned.add(pin.source)
            _LOGGER.warning("the origin of %s is not written down: %s", pin.name, error.message)
            return pin.source
        pin.home.adopt(catalog)
        origin = pin.written(catalog)
        if origin is None:  # edited meanwhile
            return pin.source
        check_same(pin.keys, origin, found)
        return pinned_spec(pin.source, origin)
