"""Owns calls from a handler to other cartridges, through the host: their arguments, and that they end with it.

It does not know which cartridge answers, nor its definitions: text, numbers and JSON travel as UTF-8.
"""

import json
from asyncio import Future, get_running_loop, run_coroutine_threadsafe
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Exchange, encode_item
from cartdeck_sdk.output import MOST_PENDING_BYTES, Output
from cartdeck_sdk.peer_call import PeerCall, PeerLink, PeerResult


class Peer:
    """Calls other cartridges for one request; they are cancelled with it."""

    def __init__(self, link: PeerLink, exchange: Exchange) -> None:
        self._link = link
        self._parent = exchange
        self._calls: list[PeerCall] = []
        self.output: Output | None = None

    def call(self, cap: str, arguments: Mapping[str, Any] | None = None) -> PeerCall:
        """Start a call. Values: str, bytes, numbers, bool, JSON-able objects, or an async iterable of bytes (of items
        when it yields anything else). From a handler's own coroutine; a worker thread uses `collect`."""
        link, connection = self._link, self._link.connection
        if not self._is_on_loop():
            message = "request.peer.call(…) belongs to an async def handler; in a thread it is request.peer.collect(…)"
            raise failure(Code.HANDLER_FAILED, message)
        if self._parent.cancelled or not self._parent.is_open or self.output is None:
            raise failure(Code.CANCELLED, "the caller gave up")
        inline, streams = split_arguments(arguments or {}, connection.their_limits.inline_arguments)
        exchange = connection.request(cap, inline, complete=not streams, parent=self._parent)
        call = PeerCall(link, exchange, self.output)
        self._calls = [one for one in self._calls if one.exchange.is_open]
        self._calls.append(call)
        if streams:
            call.feeder = link.loop.create_task(self._feed(call, streams))
            link.own_task(call.feeder)
        link.schedule_flush()
        return call

    def collect(
        self,
        cap: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        forward_progress: tuple[float, float] | None = None,
    ) -> PeerResult:
        """`call(...).collect(...)` for a worker thread: blocks until the answer is there."""
        if self._is_on_loop():
            message = "request.peer.collect(…) blocks; an async def handler awaits request.peer.call(…).collect()"
            raise failure(Code.HANDLER_FAILED, message)

        async def run() -> PeerResult:
            return await self.call(cap, arguments).collect(forward_progress=forward_progress)

        return run_coroutine_threadsafe(run(), self._link.loop).result()

    def _is_on_loop(self) -> bool:
        try:
            return get_running_loop() is self._link.loop
        except RuntimeError:  # this thread runs none
            return False

    def cancel_all(self, reason: str) -> None:
        for call in self._calls:
            if call.exchange.is_open:
                call.cancel(reason)

    async def _feed(self, call: PeerCall, streams: Mapping[str, Any]) -> None:
        """Arguments that are streams, one after another, each held by the peer's credit. A source that fails is the
        end of the call, with its error."""
        connection, name = self._link.connection, ""
        try:
            for name, value in streams.items():
                await self._feed_one(call.exchange, name, value)
        except CartdeckError as error:
            call.give_up(error)  # does nothing where it is the call that is over
        except Exception as error:
            message = f"the source of the argument {name} failed with {type(error).__name__}: {error}"
            call.give_up(failure(Code.HANDLER_FAILED, message))
        else:
            connection.end(call.exchange)
            self._link.schedule_flush()

    async def _feed_one(self, exchange: Exchange, name: str, value: Any) -> None:
        link = self._link
        if isinstance(value, bytes):
            stream = link.connection.open_stream(exchange, name=name)
            stream.write(value)
        else:
            stream = None
            async for part in cast("AsyncIterable[Any]", value):
                if stream is None:
                    stream = link.connection.open_stream(exchange, name=name, is_sequence=not isinstance(part, bytes))
                stream.write(part if isinstance(part, bytes) else encode_item(part))
                link.schedule_flush()
                if stream.pending_bytes >= MOST_PENDING_BYTES:
                    waiter: Future[None] = link.loop.create_future()
                    stream.on_writable = _waker(waiter)
                    await waiter
                    stream.on_writable = None
            stream = stream or link.connection.open_stream(exchange, name=name)
        stream.close()
        link.schedule_flush()


def split_arguments(arguments: Mapping[str, Any], most_inline: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Small values together in the request, the others as streams: those that are there as a whole first, the smallest
    before the others, since whoever is called starts with the first that it reads as it comes. BAD_ARGUMENT for a value
    that is neither."""
    inline: dict[str, bytes] = {}
    streams: dict[str, Any] = {}
    size = 0
    for name, value in arguments.items():
        if isinstance(value, AsyncIterable):
            streams[name] = value
            continue
        data = encode_loose(name, value)
        if size + len(data) > most_inline:
            streams[name] = data
        else:
            inline[name] = data
            size += len(data)
    whole = sorted(
        (name for name, value in streams.items() if isinstance(value, bytes)), key=lambda name: len(streams[name])
    )
    return inline, {name: streams[name] for name in whole} | streams


def encode_loose(name: str, value: Any) -> bytes:
    """The bytes of a value whose definition is not at hand."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise failure(
            Code.BAD_ARGUMENT,
            f"argument {name} must be text, bytes, a number, JSON or an async iterable; found {type(value).__name__}: "
            f"{error}",
            argument=name,
        ) from error


def _waker(waiter: "Future[None]") -> Callable[[], None]:
    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    return wake
