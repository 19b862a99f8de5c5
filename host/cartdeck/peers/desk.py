"""Owns a desk where a cartridge that runs without a host makes its peer calls: requests come over a pair of pipes, the
engine runs them.

It does not know who asks. Towards the pipes it has the role of a cartridge, one that serves whatever the engine finds.
Arguments are gathered before a call begins; outputs leave as they come, and wait for credit.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from cartdeck.calls.call import Call
from cartdeck.engine import Engine
from cartdeck.events import Data, End, Log, Progress
from cartdeck.sessions.channel import Channel
from cartdeck.sessions.process import Pipes
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    ArgumentsEnded,
    CancelReceived,
    ChunkReceived,
    Connection,
    Event,
    Exchange,
    ExchangeDamaged,
    ItemDecoder,
    OutStream,
    RequestReceived,
    Role,
    StreamEnded,
    StreamStarted,
    encode_item,
)

_MOST_GATHERED_BYTES: Final = 256 * 1024 * 1024
_MOST_WAITING_BYTES: Final = 1024 * 1024


class Desk:
    """Serves one pair of pipes until the other end closes them."""

    def __init__(self, engine: Engine, pipes: Pipes) -> None:
        self._engine = engine
        self._connection = Connection(Role.CARTRIDGE, manifest=b"{}", software="cartdeck serve-peers")
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel = Channel(self._connection, pipes, on_events=self._on_events, on_lost=self._on_lost)
        self._orders: set[Order] = set()

    async def run(self) -> None:
        """Serve. Raises what broke the connection."""
        try:
            await self._over
        finally:
            for order in tuple(self._orders):
                order.cancel("the caller left")
            self._channel.close()

    def _on_lost(self, error: CartdeckError | None) -> None:
        if not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RequestReceived):
                order = Order(self._engine, self._connection, self._channel, event)
                self._orders.add(order)
                order.on_over = self._orders.discard
                order.begin(event)
            else:
                exchange: Exchange | None = getattr(event, "exchange", None)
                if exchange is not None and exchange.owner is not None:
                    exchange.owner.on_event(event)


class Order:
    """One request, from its arguments to its terminal."""

    def __init__(self, engine: Engine, connection: Connection, channel: Channel, event: RequestReceived) -> None:
        self._engine = engine
        self._connection = connection
        self._channel = channel
        self._exchange = event.exchange
        self._cap = event.cap
        self._arguments: dict[str, Any] = dict(event.arguments)
        self._gathered: dict[int, bytearray] = {}
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._outs: dict[str, OutStream] = {}
        self.on_over: Any = None
        event.exchange.owner = self

    def begin(self, event: RequestReceived) -> None:
        if event.complete:
            self._start()

    def on_event(self, event: Event) -> None:
        try:
            self._take(event)
        except CartdeckError as error:
            self._answer(error)

    def cancel(self, reason: str) -> None:
        """Stop the call; the answer is CANCELLED."""
        if self._task is not None:
            self._task.cancel()
        self._answer(failure(Code.CANCELLED, reason))

    def _take(self, event: Event) -> None:
        match event:
            case StreamStarted():
                self._gathered[event.stream.number] = bytearray()
                if event.payload is not None:
                    self._gather(event.stream.number, event.payload)
                    self._keep(event.stream.number, event.stream.name, is_sequence=event.stream.is_sequence)
            case ChunkReceived():
                self._gather(event.stream.number, event.payload)
                event.stream.take()
            case StreamEnded():
                self._keep(event.stream.number, event.stream.name, is_sequence=event.stream.is_sequence)
            case ArgumentsEnded():
                self._start()
            case CancelReceived():
                self.cancel(event.reason or "the caller cancelled it")
            case ExchangeDamaged():
                self.cancel(event.error.message)
            case _:
                pass

    def _gather(self, number: int, payload: bytes) -> None:
        self._size += len(payload)
        if self._size > _MOST_GATHERED_BYTES:
            message = f"the arguments of a peer call without a host are larger than {_MOST_GATHERED_BYTES} bytes"
            raise failure(Code.BAD_ARGUMENT, message)
        self._gathered[number] += payload

    def _keep(self, number: int, name: str, *, is_sequence: bool) -> None:
        data = bytes(self._gathered.pop(number))
        if is_sequence:
            decoder = ItemDecoder()
            self._arguments[name] = decoder.feed(data)
            decoder.finish()
        else:
            self._arguments[name] = data

    def _start(self) -> None:
        if self._task is None and self._exchange.is_open and not self._exchange.cancelled:
            self._task = asyncio.get_running_loop().create_task(self._run(self._arguments))

    async def _run(self, arguments: Mapping[str, Any]) -> None:
        error: CartdeckError | None = None
        try:
            async with self._engine.call(self._cap, arguments, keep_bytes=0) as call:
                async for event in call:
                    await self._pass_on(call, event)
        except CartdeckError as found:
            error = found
        except Exception as found:  # the other end waits for a terminal, whatever went wrong here
            error = failure(Code.INTERNAL, f"{type(found).__name__}: {found}")
        self._answer(error)

    async def _pass_on(self, call: Call, event: Progress | Log | Data | End) -> None:
        connection, exchange = self._connection, self._exchange
        match event:
            case Progress():
                connection.log(
                    exchange,
                    "progress",
                    event.message,
                    progress=event.fraction,
                    phase=event.phase,
                    work=event.work,
                    total=event.total,
                )
            case Log():
                connection.log(exchange, event.level, event.message)
            case Data():
                out = self._out(call, event.output)
                out.write(encode_item(event.value) if out.is_sequence else event.value)
                await self._wait_for_room(out)
            case End():
                connection.end(exchange, progress=event.progress, provenance=event.provenance)
        self._channel.flush_soon()

    def _out(self, call: Call, name: str) -> OutStream:
        out = self._outs.get(name)
        if out is None:
            defined = None if call.route is None else call.route.definition.outputs.get(name)
            out = self._outs[name] = self._connection.open_stream(
                self._exchange,
                name=name,
                media="" if defined is None else str(defined.media),
                is_sequence=defined is not None and defined.is_sequence,
            )
        return out

    async def _wait_for_room(self, out: OutStream) -> None:
        if out.pending_bytes >= _MOST_WAITING_BYTES:
            has_left = asyncio.Event()
            out.on_writable = has_left.set
            self._channel.flush_soon()
            await has_left.wait()
            out.on_writable = None

    def _answer(self, error: CartdeckError | None) -> None:
        self._exchange.owner = None
        if error is not None:
            self._connection.fail(self._exchange, error)
        self._channel.flush_soon()
        if self.on_over is not None:
            self.on_over(self)
