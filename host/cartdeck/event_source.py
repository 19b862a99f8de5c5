"""Owns the face of what gives events to a caller: it begins, hands them out in batches, and is left; and the wait for
an end that nobody may cut short.

It does not know what the events tell, nor what runs behind them.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

EventT = TypeVar("EventT")


class EventSource(ABC, Generic[EventT]):
    """An async context manager that is iterated over. Entering begins it; leaving before the end gives it up."""

    __slots__ = ()

    @abstractmethod
    def begin(self) -> None:
        """Start it. Raises at once what is wrong with what was asked for."""

    @abstractmethod
    async def next_events(self) -> list[EventT]:
        """The next events, waiting for at least one; [] after the end. Raises its error behind the last one."""

    @abstractmethod
    async def close(self) -> None:
        """Give it up if it runs."""

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[EventT]:
        # An async generator hands over an event in a third of the time of a class with __anext__.
        while batch := await self.next_events():
            for event in batch:
                yield event


async def wait_for_end(done: asyncio.Future[Any]) -> None:
    """Wait until `done` is, whatever it gives or raises. A caller that is cancelled meanwhile waits as long, and is
    cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # keeps anyio's cancellations away; asyncio's own come once each
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
