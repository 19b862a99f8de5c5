"""Owns a call's events as they come, with a word now and then when nothing comes, and no wait for a client that left.

It does not know what the events mean, nor how they are sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

Event = TypeVar("Event")
Answer = TypeVar("Answer")
Receive = Callable[[], Coroutine[Any, Any, Any] | Any]


class Told(Protocol[Event]):
    """What tells events: a call, or a plan that runs."""

    async def next_events(self) -> list[Event]: ...


async def paced(told: Told[Event], interval_s: float) -> AsyncGenerator[list[Event]]:
    """The events as they come, several at a time; an empty list whenever none came for `interval_s`."""
    while True:
        try:
            async with asyncio.timeout(interval_s):
                events = await told.next_events()
        except TimeoutError:
            yield []
            continue
        if not events:
            return
        yield events


class Departure:
    """Watches whether the client goes away, and calls `on_gone` when it does. The body must have been read.

    A task waits for the word of the server below, from the beginning of the `with` block to its end.
    """

    def __init__(self, receive: Callable[[], Any], on_gone: Callable[[str], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None
        self.has_come = False

    def __enter__(self) -> "Departure":
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_come = True
        self._on_gone("the client went away")
