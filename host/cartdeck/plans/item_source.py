"""Owns the items that a mapped step is called for: one sequence, or several side by side.

It does not know calls. Sequences of unequal length are an error that names them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from cartdeck.plans.source_values import Taken
from cartdeck.plans.spool import END, NOTHING, Reader
from cartdeck_protocol.errors import CartdeckError, Code, failure


class ItemSource:
    """`take` gives one row: an item of each sequence; [] at the end."""

    def __init__(self, step: str, sources: Sequence[Taken]) -> None:
        self._step = step
        self.sources = sources
        self.taken = 0
        self._sole = sources[0].reader if len(sources) == 1 else None
        self._lock = asyncio.Lock()
        self._row: list[Any] = []
        """Of the next row, what is there already."""
        self._is_at_end = False
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """All sequences are there."""
        if not self._is_complete:
            self._is_complete = all(one.flow.is_ended for one in self.sources)
        return self._is_complete

    @property
    def count(self) -> int | None:
        """How many rows there are; None while that is not known."""
        return self.sources[0].flow.spool.count if self.is_complete else None

    @property
    def may_have_more(self) -> bool:
        spool = self.sources[0].flow.spool
        return not self._is_at_end and (spool.count > self.taken or not spool.is_ended)

    def take_now(self) -> list[Any] | None:
        """The next row, if it is there and nobody waits for it."""
        return None if self._lock.locked() else self._try()

    def watch(self, waiter: "asyncio.Future[None]") -> None:
        """`waiter` is done as soon as there may be a row that was not there; for one who alone takes rows."""
        self.sources[len(self._row)].reader.watch(waiter)

    async def take(self) -> list[Any]:
        """The next row; [] at the end. Raises BAD_ARGUMENT for sequences of unequal length."""
        async with self._lock:
            while (row := self._try()) is None:
                await self.sources[len(self._row)].reader.wait()
            return row

    def _try(self) -> list[Any] | None:
        if self._is_at_end:
            return []
        if self._sole is not None:
            return self._try_sole(self._sole)
        row = self._row
        while len(row) < len(self.sources):
            entry = self.sources[len(row)].reader.take()
            if entry is NOTHING:
                return None
            row.append(entry)
        self._row = []
        if any(entry is END for entry in row):
            self._is_at_end = True
            self._check_ends(row)
            return []
        self.taken += 1
        return row

    def _try_sole(self, reader: Reader) -> list[Any] | None:
        """`_try` with a single sequence, as nearly all steps have."""
        entry = reader.take()
        if entry is NOTHING:
            return None
        if entry is END:
            self._is_at_end = True
            return []
        self.taken += 1
        return [entry]

    def _check_ends(self, row: list[Any]) -> None:
        longer = {one.flow.name for one, entry in zip(self.sources, row, strict=True) if entry is not END}
        if longer:
            names = [one.flow.name for one in self.sources]
            raise self.unequal({name: self.taken + (name in longer) for name in names}, at_least=longer)

    def unequal(self, lengths: Mapping[str, int], at_least: set[str] | frozenset[str] = frozenset()) -> CartdeckError:
        """The error for sequences that are taken side by side and differ in length."""
        counts = [f"{name} has {'at least ' if name in at_least else ''}{count}" for name, count in lengths.items()]
        message = f"{self._step} takes its sources item by item, and they are unequal: {', '.join(counts)}"
        return failure(Code.BAD_ARGUMENT, message, details={"lengths": dict(lengths)})

    def run(self) -> None:
        """Calls are open: whoever gives the items may be made to wait."""
        for one in self.sources:
            one.reader.is_running = True

    def stand(self) -> None:
        for one in self.sources:
            one.reader.stand()
