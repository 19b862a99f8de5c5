"""Owns the consumer's side of one stream: chunks in order, credit given back as they are taken.

It does not know frames. A coroutine iterates it with `async for`; a worker thread with `for`.
"""

from asyncio import AbstractEventLoop, Future, run_coroutine_threadsafe
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import InStream, ItemDecoder


class ReceivedStream:
    """Chunks (bytes) of a byte stream, or the items of a sequence.

    Iterating raises what ended the stream early: the other side's error, a cancel, an item cut off.
    """

    def __init__(self, loop: AbstractEventLoop, flush: Callable[[], None], *, is_sequence: bool) -> None:
        self._loop = loop
        self._flush = flush
        self.is_sequence = is_sequence
        self._decoder = ItemDecoder() if is_sequence else None
        self._stream: InStream | None = None
        self._chunks: deque[bytes] = deque()
        self._items: deque[Any] = deque()
        self._is_ended = False
        self._is_discarded = False
        self._error: CartdeckError | None = None
        self._waiter: Future[None] | None = None

    def attach(self, stream: InStream) -> None:
        self._stream = stream

    def feed(self, chunk: bytes) -> None:
        if self._is_discarded:
            if self._stream is not None:
                self._stream.take()
            return
        self._chunks.append(chunk)
        self._wake()

    def end(self, error: CartdeckError | None = None) -> None:
        """No more chunks; with `error`, the stream was broken off."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._wake()

    def discard(self) -> None:
        """Nobody wants the rest: take it as it comes, so that the sender is never held."""
        self._is_discarded = True
        if self._stream is not None and self._chunks:
            self._stream.take(len(self._chunks))
            self._stream.settle()
            self._flush()
        self._chunks.clear()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            if self._items:
                return self._items.popleft()
            if self._chunks:
                chunk = self._chunks.popleft()
                if self._stream is not None:
                    self._stream.take()
                    self._flush()
                if self._decoder is None:
                    return chunk
                self._items.extend(self._decoder.feed(chunk))
                continue
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                if self._decoder is not None:
                    self._decoder.finish()
                raise StopAsyncIteration
            if self._stream is not None:
                self._stream.settle()  # what is owed is granted before waiting: the sender may wait for it
                self._flush()
            self._waiter = self._loop.create_future()
            await self._waiter

    async def _batch(self) -> list[Any] | None:
        """What is there now, at least one; None at the end: a worker thread hops once per batch, not per item."""
        try:
            found = [await self.__anext__()]
        except StopAsyncIteration:
            return None
        while self._items or self._chunks:
            found.append(await self.__anext__())
        return found

    def __iter__(self) -> Iterator[Any]:
        while (batch := run_coroutine_threadsafe(self._batch(), self._loop).result()) is not None:
            yield from batch

    async def read(self) -> bytes:
        """The whole byte stream."""
        return b"".join([chunk async for chunk in self])
