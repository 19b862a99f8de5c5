"""Owns a value on its way from one writer to its readers: kept once, in memory up to a budget, beyond it in a file.

It does not know steps. The writer is held back only by readers that are running: while none of them is, whatever
comes is kept, so that a writer can end and give up what its readers wait for. Among those that run the fastest counts;
a slower one reads later, from the file. So no ring of steps can wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from cartdeck.plans.spill import Spill
from cartdeck_protocol.errors import CartdeckError

WINDOW_BYTES: Final = 1024 * 1024
"""So far ahead of its fastest reader a writer may be."""
_ENTRY_BYTES: Final = 64
"""What an entry takes in memory beside its bytes, about."""
_ALWAYS_IN_MEMORY: Final = 16 * 1024
_TRIMMED_AT: Final = 256


class Budget:
    """The memory that all values of a run may take together."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0


class _Mark:
    """What is no entry."""


END: Final = _Mark()
"""What a reader gets behind the last entry."""
NOTHING: Final = _Mark()
"""What it gets while there is none."""


class Reader:
    """One who reads a spool from its beginning. With `keeps`, what was read can be read again."""

    __slots__ = ("_offset", "_waiter", "is_closed", "is_running", "keeps", "position", "read_bytes", "spool")

    def __init__(self, spool: "Spool", *, keeps: bool) -> None:
        self.spool = spool
        self.keeps = keeps
        self.position = 0
        self.read_bytes = 0
        self.is_running = False
        """It takes what comes, so the writer waits for it where it is slow."""
        self.is_closed = False
        self._offset = 0
        self._waiter: asyncio.Future[None] | None = None

    def take(self) -> Any:
        """The next entry; END behind the last; NOTHING while there is none. Raises the spool's error."""
        spool = self.spool
        if self.position == spool.count:
            if spool.error is not None:
                raise spool.error
            return END if spool.is_ended else NOTHING
        if self.position < spool.stored_from:
            entry, size = spool.in_memory(self.position)
        else:
            entry, size, self._offset = spool.in_file(self._offset)
        self.position += 1
        self.read_bytes += size
        spool.was_read(self)
        return entry

    async def next(self) -> Any:
        """The next entry, or END."""
        while (entry := self.take()) is NOTHING:
            await self.wait()
        return entry

    async def wait(self) -> None:
        """Until something may be new."""
        waiter = asyncio.get_running_loop().create_future()
        self.watch(waiter)
        await waiter

    def watch(self, waiter: "asyncio.Future[None]") -> None:
        """`waiter` is done as soon as something may be new; the last one that is given is."""
        self._waiter = waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def entries(self) -> AsyncIterator[Any]:
        """All entries, from here on; whoever asks for the first one is running."""
        self.is_running = True
        try:
            while (entry := await self.next()) is not END:
                yield entry
        finally:
            self.stand()

    async def rest(self) -> list[Any]:
        """All entries that come, to the end."""
        found: list[Any] = []
        while (entry := await self.next()) is not END:
            found.append(entry)
        return found

    def stand(self) -> None:
        """It does not run for now: the writer need not wait."""
        self.is_running = False
        self.spool.let_go()

    def rewind(self) -> None:
        """Back to the beginning, of a reader that keeps."""
        assert self.keeps
        self.position = self.read_bytes = self._offset = 0

    def forget_offset(self) -> None:
        """The file begins anew."""
        self._offset = 0

    def fork(self) -> "Reader":
        """Another reader from the beginning, of one that keeps."""
        assert self.keeps
        return self.spool.reader(keeps=False)

    def close(self) -> None:
        """It reads no more."""
        if not self.is_closed:
            self.is_closed = True
            self.spool.left(self)


class Spool:
    """Entries in their order: pieces of bytes, or items. Readers are made before anything is read."""

    __slots__ = (
        "_budget", "_memory", "_memory_bytes", "_memory_from", "_readers", "_room", "_spill", "count", "error",
        "is_ended", "put_bytes", "spilled", "stored_from",
    )  # fmt: skip

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._readers: list[Reader] = []
        self._memory: list[tuple[Any, int]] = []
        self._memory_from = 0
        """The position of the first entry in memory."""
        self._memory_bytes = 0
        self._spill: Spill | None = None
        self.stored_from = 1 << 62
        """The position of the first entry in the file."""
        self.count = 0
        self.put_bytes = 0
        self.spilled = 0
        """So many entries have gone to the file."""
        self.is_ended = False
        self.error: CartdeckError | None = None
        self._room: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, entries: Iterable[Any], budget: Budget) -> "Spool":
        """A spool that has all there is: the entries are the caller's, and cost the budget nothing."""
        spool = cls(budget)
        spool._memory = [(entry, 0) for entry in entries]
        spool.count = len(spool._memory)
        spool.is_ended = True
        return spool

    def reader(self, *, keeps: bool) -> Reader:
        reader = Reader(self, keeps=keeps)
        self._readers.append(reader)
        return reader

    # -- the writer

    def put(self, entry: Any, size: int) -> None:
        """Add an entry of `size` bytes. Raises INSUFFICIENT_STORAGE when it must go to a disk that is full."""
        if not self._readers:
            self.put_bytes += size
            return
        cost = size + _ENTRY_BYTES
        budget = self._budget
        fits = self._memory_bytes + cost <= _ALWAYS_IN_MEMORY or budget.used_bytes + cost <= budget.size_bytes
        if self.stored_from > self.count and fits:
            self._memory.append((entry, cost))
            self._memory_bytes += cost
            budget.used_bytes += cost
        else:
            if self._spill is None:
                self._spill = Spill()
            self.stored_from = min(self.stored_from, self.count)
            self._spill.append(entry, cost)
            self.spilled += 1
        self.count += 1
        self.put_bytes += cost
        for reader in self._readers:
            reader.wake()

    @property
    def is_read(self) -> bool:
        """Somebody takes what comes, as it comes."""
        return any(one.is_running for one in self._readers)

    @property
    def is_full(self) -> bool:
        """The writer is far ahead of all readers that run."""
        ahead = [self.put_bytes - one.read_bytes for one in self._readers if one.is_running]
        return bool(ahead) and min(ahead) >= WINDOW_BYTES

    async def room(self, limit_s: float) -> None:
        """Wait until the spool is not full, `limit_s` at most: whoever sends must not be left waiting for ever."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        while self.is_full and loop.time() < until_s:
            if self._room is None or self._room.done():
                self._room = loop.create_future()
            timer = loop.call_at(until_s, _resolve, self._room)
            try:
                await asyncio.shield(self._room)
            finally:
                timer.cancel()

    def clear(self) -> None:
        """Forget all that was put, which nobody has read."""
        self._budget.used_bytes -= self._memory_bytes
        self._memory, self._memory_bytes, self._memory_from = [], 0, 0
        if self._spill is not None:
            self._spill.clear()
            self._spill = None
        self.stored_from = 1 << 62
        self.count = self.put_bytes = 0

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            for reader in self._readers:
                reader.wake()

    def fail(self, error: CartdeckError) -> None:
        """There will be no more; readers get `error` behind what they have not read."""
        if not self.is_ended:
            self.error = error
            self.end()

    # -- for readers

    def in_memory(self, position: int) -> tuple[Any, int]:
        return self._memory[position - self._memory_from]

    def in_file(self, offset: int) -> tuple[Any, int, int]:
        assert self._spill is not None
        return self._spill.read(offset)

    def was_read(self, reader: Reader) -> None:
        if not reader.keeps and (
            reader.position - self._memory_from >= _TRIMMED_AT
            or self._memory_bytes > WINDOW_BYTES
            or self._spill is not None
        ):
            self._trim()
        if self._room is not None:
            self.let_go()

    def left(self, reader: Reader) -> None:
        self._readers.remove(reader)
        if not self._readers and self._spill is None:
            self._budget.used_bytes -= self._memory_bytes
            self._memory, self._memory_bytes, self._memory_from = [], 0, self.count
        else:
            self._trim()
        if self._room is not None:
            self.let_go()

    def let_go(self) -> None:
        """The writer may go on, if it waits and there is room."""
        if self._room is not None and not self._room.done() and not self.is_full:
            self._room.set_result(None)

    def _trim(self) -> None:
        """Give up what no reader needs any more."""
        needed = min((0 if one.keeps else one.position for one in self._readers), default=self.count)
        done = min(needed, self.stored_from, self.count) - self._memory_from
        if done > 0 and (done >= len(self._memory) or done >= _TRIMMED_AT or self._memory_bytes > WINDOW_BYTES):
            freed = sum(size for _, size in self._memory[:done])
            del self._memory[:done]
            self._memory_from += done
            self._memory_bytes -= freed
            self._budget.used_bytes -= freed
        if self._spill is not None and needed == self.count:
            self._spill.clear()
            self._spill = None
            self.stored_from = 1 << 62
            self._memory_from = self.count
            for reader in self._readers:
                reader.forget_offset()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
