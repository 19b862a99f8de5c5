"""Owns the items of a sequence as they come in, so that those which are there together are computed together.

It does not know what they are.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sized
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Sized)

MOST_ITEMS: Final = 4096
MOST_SIZE: Final = 4 * 1024 * 1024
"""Characters of texts, bytes of images: above either, reading waits until what is there was taken."""


class Intake(Generic[T]):
    """Reads a stream while what came is worked on."""

    def __init__(self, stream: AsyncIterator[T], *, most_size: int = MOST_SIZE) -> None:
        self.received = 0
        self.is_ended = False
        """Whether `received` is all there will be."""
        self._stream = stream
        self._most_size = most_size
        self._waiting: list[T] = []
        self._size = 0
        self._changed = asyncio.Condition()

    async def windows(self) -> AsyncGenerator[list[T]]:
        """What came since the last time, at least one item; ends with the stream, or raises what the stream raises."""
        reader = asyncio.create_task(self._read())
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._waiting or self.is_ended)
                    window, self._waiting = self._waiting, []
                    self._size = 0
                    self._changed.notify_all()
                if not window:
                    await reader
                    return
                yield window
        finally:
            reader.cancel()

    async def _read(self) -> None:
        try:
            async for item in self._stream:
                self.received += 1
                self._waiting.append(item)
                self._size += len(item)
                if len(self._waiting) == 1:
                    async with self._changed:
                        self._changed.notify_all()
                if len(self._waiting) >= MOST_ITEMS or self._size >= self._most_size:
                    async with self._changed:
                        await self._changed.wait_for(lambda: not self._waiting)
        finally:
            self.is_ended = True
            async with self._changed:
                self._changed.notify_all()
