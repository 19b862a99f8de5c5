"""Owns the way of a caller's large or growing arguments into their streams.

It does not know sessions. What is there as a whole goes in at once, without a task; a file or an iterable is fed by a
task of its own, while outputs are read.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from cartdeck.calls.arguments import ArgumentStream, encode_element, open_file
from cartdeck.calls.pulling import Source
from cartdeck.peers.link import Link
from cartdeck_protocol.caps import decode_value
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Exchange, OutStream

_READ_BYTES: Final = 1024 * 1024
"""A file is read by a worker thread; a hop costs 40 µs, so it brings a whole pipe's worth."""
_HIGH_WATER_BYTES: Final = 1024 * 1024
"""So much may wait in a stream before its source is asked for more."""


class Feed:
    """One argument stream of one call. `flush` sends what was written."""

    def __init__(self, stream: OutStream, argument: ArgumentStream, flush: Callable[[], None]) -> None:
        self._stream = stream
        self._definition = argument.definition
        self._source = argument.source
        self._items = argument.items
        self._flush = flush
        self._waiter: asyncio.Future[None] | None = None

    def feed_at_once(self) -> bool:
        """Write a source that is there as a whole. False for one that needs `run`."""
        source = self._source
        if isinstance(source, bytes) and not self._definition.is_sequence:
            self._stream.write(source)
        elif self._items is not None:
            for item in self._items:
                self._stream.write(item)
        else:
            return False
        self._stream.close()
        return True

    async def run(self) -> None:
        """Feed the source to its end. Raises BAD_ARGUMENT for what it gives or raises; the stream's own error when
        the call is over."""
        source: Any = self._source
        try:
            if isinstance(source, Path) and not self._definition.is_sequence:
                await self._feed_file(source)
            elif isinstance(source, AsyncIterable):
                async for item in cast("AsyncIterable[Any]", source):
                    await self._put(item)
            else:
                is_one = isinstance(source, Path) or not isinstance(source, Iterable)
                items: Iterable[Any] = [source] if is_one else cast("Iterable[Any]", source)
                await self._feed_iterator(iter(items))
        except (CartdeckError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also a CancelledError of the source's own, which would be lost in this task
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            name = self._definition.name
            message = f"the source of {name} failed with {type(error).__name__}: {error}"
            raise failure(Code.BAD_ARGUMENT, message, argument=name) from error
        self._stream.close()
        self._flush()

    async def _feed_file(self, path: Path) -> None:
        with await asyncio.to_thread(open_file, path, self._definition.name) as file:
            while data := await asyncio.to_thread(file.read, _READ_BYTES):
                self._stream.write(data)
                self._flush()
                await self._wait_for_room()

    async def _feed_iterator(self, iterator: Iterator[Any]) -> None:
        source = Source(iterator)
        while True:
            items, is_done = await source.next_items()
            for item in items:
                await self._put(item)
            if is_done:
                return

    async def _put(self, item: Any) -> None:
        if isinstance(item, Path):
            item = await asyncio.to_thread(_read_file, item, self._definition.name)
            if self._definition.is_sequence:  # its bytes are those of one value, whatever kind that is
                item = decode_value(self._definition, item)
        self._stream.write(self._encode(item))
        self._flush()
        await self._wait_for_room()

    def _encode(self, item: Any) -> bytes:
        return encode_element(self._definition, item)

    async def _wait_for_room(self) -> None:
        stream = self._stream
        while stream.pending_bytes >= _HIGH_WATER_BYTES and stream.error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            stream.on_writable = self._wake
            await self._waiter
        if stream.error is not None:
            raise stream.error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Feeding:
    """All argument streams of one call: opened, fed, and ended when the last is through. Streams of one request
    advance independently, so each that needs a task has its own.

    `on_failure` is told of a source that failed, once.
    """

    def __init__(
        self,
        link: Link,
        exchange: Exchange,
        *,
        start_task: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        on_failure: Callable[[CartdeckError], None],
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._start_task = start_task
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0

    def start(self, arguments: Iterable[ArgumentStream]) -> None:
        """Open all streams; without a source that needs a task all is said when this returns."""
        feeds: list[Feed] = []
        for argument in arguments:
            definition = argument.definition
            stream = self._link.connection.open_stream(
                self._exchange, name=definition.name, media=str(definition.media), is_sequence=definition.is_sequence
            )
            feed = Feed(stream, argument, self._link.flush_soon)
            if not feed.feed_at_once():
                feeds.append(feed)
        self._running = len(feeds)
        if feeds:
            self._tasks = [self._start_task(self._run(feed)) for feed in feeds]
        else:
            self._link.connection.end(self._exchange)

    async def _run(self, feed: Feed) -> None:
        try:
            await feed.run()
        except CartdeckError as error:
            self._on_failure(error)
            return
        self._running -= 1
        if not self._running:
            self._link.connection.end(self._exchange)
            self._link.flush_soon()

    def stop(self) -> None:
        """The call is over."""
        for task in self._tasks:
            task.cancel()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _read_file(path: Path, argument: str) -> bytes:
    with open_file(path, argument) as file:
        return file.read()
