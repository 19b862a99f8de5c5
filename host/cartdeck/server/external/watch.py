"""Owns a call of another server whose course is written into the journal, as those of the cartridges are.

It does not know who asked. Nothing is loaded here: there is the wait for the first piece, and what comes then.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from cartdeck.events import Event
from cartdeck.server.external.asking import Asked
from cartdeck.server.external.call import ExternalCall
from cartdeck.server.external.place import Place
from cartdeck.server.external.servers import Servers
from cartdeck.server.live.journal import CallEntry, Journal, Stage


class WatchedExternal(ExternalCall):
    """The journal's entry is there from the beginning of the call to its end."""

    def __init__(
        self, servers: Servers, place: Place, asked: Asked, *, timeout_s: float | None, journal: Journal, model: str
    ) -> None:
        super().__init__(servers, place, asked, timeout_s=timeout_s)
        self._journal = journal
        self._model = model
        self._entry: CallEntry | None = None

    async def __aenter__(self) -> Self:
        entry = self._entry = self._journal.begin(self._asked.kind.cap, self._model)
        entry.cartridge = self._place.name
        self._journal.advance(entry, Stage.FIRST)
        await super().__aenter__()
        assert self._task is not None
        self._task.add_done_callback(self._note_end)
        return self

    async def _tell(self, events: Sequence[Event]) -> None:
        if events and self._entry is not None:
            self._journal.advance(self._entry, Stage.TOKENS)
        await super()._tell(events)

    def _note_end(self, _task: "asyncio.Task[Any]") -> None:
        assert self._entry is not None
        if self._error is not None:
            self._journal.fail(self._entry, self._error)
        else:
            self._journal.finish(self._entry, self._answer.provenance)
