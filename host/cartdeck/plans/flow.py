"""Owns a value of a plan while it runs: its entries, and whom to tell that it has begun and that it has ended.

It does not know steps, nor what the entries are made of.
"""

from collections.abc import Callable
from typing import Any

from cartdeck.plans.convert import Absent, size_of
from cartdeck.plans.spool import Budget, Reader, Spool
from cartdeck_protocol.errors import CartdeckError


class Flow:
    """A value: pieces of bytes where `depth` is 0, items of a sequence else."""

    __slots__ = ("_on_begun", "_on_ended", "absent", "depth", "has_begun", "is_handed_over", "name", "spool")

    def __init__(self, name: str, depth: int, budget: Budget) -> None:
        self.name = name
        self.depth = depth
        self.spool = Spool(budget)
        self.absent: Absent | None = None
        """There is no value, and why."""
        self.has_begun = False
        self.is_handed_over = True
        """Entries go to the readers as they come; else all of them at the end."""
        self._on_begun: list[Callable[[], None]] = []
        self._on_ended: list[Callable[[], None]] = []

    @property
    def is_ended(self) -> bool:
        return self.spool.is_ended

    def reader(self, *, keeps: bool) -> Reader:
        return self.spool.reader(keeps=keeps)

    def when_begun(self, told: Callable[[], None]) -> None:
        self._on_begun.append(told)

    def when_ended(self, told: Callable[[], None]) -> None:
        self._on_ended.append(told)

    def put(self, entry: Any) -> None:
        self.spool.put(entry, len(entry) if type(entry) is bytes else size_of(entry))

    def begin(self) -> None:
        """There is something, and more may come: who can take it as it comes may start."""
        if self.is_handed_over and not self.has_begun:
            self._tell_begun()

    def drop(self) -> None:
        """What came is of no use: it comes again. Only of a value that is handed over at the end."""
        self.spool.clear()

    def end(self) -> None:
        if self.spool.is_ended:
            return
        self.spool.end()
        self._tell_begun()
        told, self._on_ended = self._on_ended, []
        for one in told:
            one()

    def miss(self, absent: Absent) -> None:
        """There will be no value."""
        if not self.spool.is_ended:
            self.absent = absent
            self.end()

    def fail(self, error: CartdeckError) -> None:
        """The plan is at its end: readers that run get `error`, and none is started."""
        self._on_begun.clear()
        self._on_ended.clear()
        self.spool.fail(error)

    def _tell_begun(self) -> None:
        self.has_begun = True
        told, self._on_begun = self._on_begun, []
        for one in told:
            one()
