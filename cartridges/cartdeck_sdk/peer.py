"""Owns calls from a handler to other cartridges, through the host.

It does not know which cartridge answers, nor its definitions: text, numbers and JSON travel as UTF-8.
"""

import json
from asyncio import AbstractEventLoop, CancelledError, Future, Task, run_coroutine_threadsafe
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.progress import Span
from cartdeck_protocol.wire import (
    ChunkReceived,
    Connection,
    Event,
    Exchange,
    ExchangeDamaged,
    Failed,
    Finished,
    Logged,
    StreamEnded,
    StreamStarted,
    encode_item,
)
from cartdeck_sdk.output import MOST_PENDING_BYTES, Output
from cartdeck_sdk.received_stream import ReceivedStream

_MOST_COLLECTED_BYTES: Final = 1024 * 1024 * 1024


class PeerLink(Protocol):
    """What a peer call needs of the service."""

    loop: AbstractEventLoop
    connection: Connection

    def schedule_flush(self) -> None: ...
    def own_task(self, task: "Task[None]") -> None: ...


@dataclass(slots=True)
class PeerResult:
    """What a peer call brought. Bytes and items by output name, "" being the main one."""

    progress: float = 1.0
    provenance: dict[str, Any] = field(default_factory=lambda: {})
    chunks: dict[str, list[bytes]] = field(default_factory=lambda: {})
    sequences: dict[str, list[Any]] = field(default_factory=lambda: {})

    @property
    def data(self) -> bytes:
        return self.output("")

    @property
    def text(self) -> str:
        """The main output as text. INVALID_TEXT when it is not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise failure(Code.INVALID_TEXT, f"the peer's answer is not UTF-8: {error}") from error

    @property
    def items(self) -> list[Any]:
        return self.items_of("")

    def output(self, name: str) -> bytes:
        return b"".join(self.chunks.get(name, ()))

    def items_of(self, name: str) -> list[Any]:
        return self.sequences.get(name, [])


class PeerCall:
    """One call to another cartridge. `collect` waits for it and returns the whole answer."""

    def __init__(self, link: PeerLink, exchange: Exchange, output: Output) -> None:
        self._link = link
        self._output = output
        self._streams: dict[int, tuple[str, ReceivedStream]] = {}
        self._readers: list[Task[None]] = []
        self._done: Future[None] = link.loop.create_future()
        self._span: Span | None = None
        self._result = PeerResult()
        self._error: CartdeckError | None = None
        self.exchange = exchange
        exchange.owner = self

    async def collect(self, *, forward_progress: tuple[float, float] | None = None) -> PeerResult:
        """The whole answer. The peer's progress becomes the own call's, mapped to `forward_progress`; its log lines
        are passed on. Raises the peer's error."""
        if forward_progress is not None:
            low, high = forward_progress
            self._span = Span(low, high - low)
        try:
            await self._done
            for reader in self._readers:
                await reader
        except CancelledError:
            self.cancel("the calling handler was cancelled")
            raise
        finally:
            for reader in self._readers:
                reader.cancel()
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self, reason: str) -> None:
        """Give up; the host cancels the peer."""
        self._link.connection.cancel(self.exchange, reason)
        self._link.schedule_flush()
        self._finish(failure(Code.CANCELLED, reason))

    def on_event(self, event: Event) -> None:
        """The service passes on each event of the call."""
        if isinstance(event, ChunkReceived):
            self._streams[event.stream.number][1].feed(event.payload)
        elif isinstance(event, StreamStarted):
            self._start(event)
        elif isinstance(event, StreamEnded):
            self._streams[event.stream.number][1].end()
        elif isinstance(event, Logged):
            self._forward(event)
        elif isinstance(event, Finished):
            self._result.progress, self._result.provenance = event.progress, event.provenance
            self._finish(None)
        elif isinstance(event, Failed | ExchangeDamaged):
            self._finish(event.error)

    def _start(self, event: StreamStarted) -> None:
        link, wire_stream = self._link, event.stream
        stream = ReceivedStream(link.loop, link.schedule_flush, is_sequence=wire_stream.is_sequence)
        stream.attach(wire_stream)
        self._streams[wire_stream.number] = (wire_stream.name, stream)
        if event.payload is not None:
            stream.feed(event.payload)
            stream.end()
        self._readers.append(link.loop.create_task(self._read(wire_stream.name, stream)))

    async def _read(self, name: str, stream: ReceivedStream) -> None:
        kept = self._result.sequences if stream.is_sequence else self._result.chunks
        into = cast("dict[str, list[Any]]", kept).setdefault(name, [])
        size = 0
        async for value in stream:
            into.append(value)
            size += len(value) if isinstance(value, bytes) else 1
            if size > _MOST_COLLECTED_BYTES:
                raise failure(Code.FRAME_TOO_LARGE, f"a peer's answer is larger than {_MOST_COLLECTED_BYTES} bytes")

    def _forward(self, event: Logged) -> None:
        if event.progress is None:
            self._output.log(event.level, event.message)
        elif self._span is not None:
            self._output.progress(
                self._span.at(event.progress), event.message, phase=event.phase, work=event.work, total=event.total
            )

    def _finish(self, error: CartdeckError | None) -> None:
        if self._error is None:
            self._error = error
        for _, stream in self._streams.values():
            stream.end(error)
        if not self._done.done():
            self._done.set_result(None)


class Peer:
    """Calls other cartridges for one request; they are cancelled with it."""

    def __init__(self, link: PeerLink, exchange: Exchange) -> None:
        self._link = link
        self._parent = exchange
        self._calls: list[PeerCall] = []
        self.output: Output | None = None

    def call(self, cap: str, arguments: Mapping[str, Any] | None = None) -> PeerCall:
        """Start a call. Values: str, bytes, numbers, bool, JSON-able objects, or an async iterable of bytes (of items
        when it yields anything else)."""
        link, connection = self._link, self._link.connection
        if self._parent.cancelled or not self._parent.is_open or self.output is None:
            raise failure(Code.CANCELLED, "the caller gave up")
        inline, streams = split_arguments(arguments or {}, connection.their_limits.inline_arguments)
        exchange = connection.request(cap, inline, complete=not streams, parent=self._parent)
        call = PeerCall(link, exchange, self.output)
        self._calls = [one for one in self._calls if one.exchange.is_open]
        self._calls.append(call)
        if streams:
            link.own_task(link.loop.create_task(self._feed(call, streams)))
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

        async def run() -> PeerResult:
            return await self.call(cap, arguments).collect(forward_progress=forward_progress)

        return run_coroutine_threadsafe(run(), self._link.loop).result()

    def cancel_all(self, reason: str) -> None:
        for call in self._calls:
            if call.exchange.is_open:
                call.cancel(reason)

    async def _feed(self, call: PeerCall, streams: Mapping[str, Any]) -> None:
        """Arguments that are streams, one after another, each held by the peer's credit."""
        connection = self._link.connection
        try:
            for name, value in streams.items():
                await self._feed_one(call.exchange, name, value)
            connection.end(call.exchange)
            self._link.schedule_flush()
        except CartdeckError:
            return  # the call is over: its terminal tells the handler

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
    """Small values together in the request, the others as streams. BAD_ARGUMENT for a value that is neither."""
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
    return inline, streams


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
