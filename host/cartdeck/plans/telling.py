"""Owns the events that a caller has not taken: of each step's progress the latest, of log lines the last, all ends.

It does not know steps. A caller who waits for the end alone is told nothing, and nothing is kept for it.
"""

import asyncio
from collections import deque
from typing import Final

from cartdeck.plans.events import PlanEvent, StepLog, StepProgress

_MOST_LINES: Final = 1000


class Telling:
    def __init__(self) -> None:
        self._events: deque[PlanEvent] = deque()
        self._progress: dict[str, StepProgress] = {}
        self._lines = 0
        self._waiter: asyncio.Future[None] | None = None
        self.is_wanted = True

    def tell(self, event: PlanEvent) -> None:
        if not self.is_wanted:
            return
        if type(event) is StepLog:
            if self._lines >= _MOST_LINES:
                return
            self._lines += 1
        self._events.append(event)
        self._wake()

    def waiting_progress(self, step: str) -> StepProgress | None:
        """The progress of the step that nobody took yet, to be brought up to date in place."""
        return self._progress.get(step)

    def tell_progress(self, event: StepProgress) -> None:
        """What becomes the waiting progress of its step."""
        self._progress[event.step] = event
        self._events.append(event)
        self._wake()

    def take(self) -> list[PlanEvent]:
        events = [*self._events]
        self._events.clear()
        self._progress.clear()
        self._lines = 0
        return events

    def turn_off(self) -> None:
        """Nobody wants events any more."""
        self.is_wanted = False
        self.take()

    async def wait(self) -> None:
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
