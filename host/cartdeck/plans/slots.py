"""Owns how many calls of a run may be open at once: of each cartridge, and in all.

It does not know calls. The engine would queue what is too many; here it waits without a place in the engine's queue,
and so that who came first goes first.
"""

import asyncio
from collections import deque


class Slots:
    def __init__(self, most: int) -> None:
        self._free = most
        self._free_of: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take_now(self, cartridge: str, capacity: int) -> bool:
        """A place for a call of the cartridge, if there is one and nobody waits for it."""
        free = self._free_of.setdefault(cartridge, capacity)
        if free <= 0 or self._free <= 0 or self._waiting.get(cartridge):
            return False
        self._free_of[cartridge] = free - 1
        self._free -= 1
        return True

    async def take(self, cartridge: str, capacity: int) -> None:
        """Wait for a place."""
        if self.take_now(cartridge, capacity):
            return
        place = self.ask(cartridge, capacity)
        try:
            await place
        except asyncio.CancelledError:
            self.withdraw(cartridge, place)
            raise

    def ask(self, cartridge: str, capacity: int) -> "asyncio.Future[None]":
        """What is done when there is a place, which is taken then; for one who found none."""
        self._free_of.setdefault(cartridge, capacity)
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(cartridge, deque()).append(place)
        return place

    def withdraw(self, cartridge: str, place: "asyncio.Future[None]") -> None:
        """Who asked does not want it any more, also where it was given in the same moment."""
        queue = self._waiting.get(cartridge)
        if place.done() and not place.cancelled():
            self.give(cartridge)
        elif queue is not None and place in queue:
            queue.remove(place)

    def give(self, cartridge: str) -> None:
        """A call of the cartridge has ended."""
        self._free_of[cartridge] += 1
        self._free += 1
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        for cartridge in [*self._waiting]:
            queue = self._waiting[cartridge]
            while queue and self._free > 0 and self._free_of[cartridge] > 0:
                waiter = queue.popleft()
                if not waiter.done():
                    self._free_of[cartridge] -= 1
                    self._free -= 1
                    waiter.set_result(None)
            if not queue:
                del self._waiting[cartridge]
