"""Owns one call from a handler to another cartridge: what comes of it, and its end.

It does not know what is sent, nor which cartridge answers.
"""

from asyncio import AbstractEventLoop, CancelledError, Future, Task, current_task
from collections.abc import AsyncGenerator
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
)
from cartdeck_sdk.output import Output
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
    """One call to another cartridge. `collect` waits for it and returns the whole answer; `stream` gives an output as
    it comes, before `collect` gives the rest."""

    def __init__(self, link: PeerLink, exchange: Exchange, output: Output) -> None:
        self._link = link
        self._output = output
        self._streams: dict[int, tuple[str, ReceivedStream]] = {}
        self._readers: list[Task[None]] = []
        self._done: Future[None] = link.loop.create_future()
        self._span: Span | None = None
        self._wanted: dict[str, Future[ReceivedStream | None]] = {}
        self._result = PeerResult()
        self._error: CartdeckError | None = None
        self.feeder: Task[None] | None = None
        """Sends the arguments that are streams."""
        self.exchange = exchange
        exchange.owner = self

    async def collect(self, *, forward_progress: tuple[float, float] | None = None) -> PeerResult:
        """The whole answer. The peer's progress becomes the own call's, mapped to `forward_progress`; its log lines
        are passed on. Raises the peer's error."""
        self._forward_to(forward_progress)
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

    async def stream(
        self, name: str = "", *, forward_progress: tuple[float, float] | None = None
    ) -> AsyncGenerator[Any]:
        """Chunks, or items, of one output as they come, held by the own reader's pace; `collect` leaves it out then.
        Ask for it before anything is awaited. Raises the peer's error."""
        self._forward_to(forward_progress)
        opened = self._wanted.setdefault(name, self._link.loop.create_future())
        source: ReceivedStream | None = None
        try:
            source = await opened
            if source is not None:
                async for value in source:
                    yield value
            elif self._error is not None:
                raise self._error
        except CancelledError:
            self.cancel("the calling handler was cancelled")
            raise
        finally:
            if source is not None:
                source.discard()  # a reader that left early must not hold the peer

    def cancel(self, reason: str) -> None:
        """Give up; the host cancels the peer."""
        self.give_up(failure(Code.CANCELLED, reason))

    def give_up(self, error: CartdeckError) -> None:
        """The same, for that reason, which whoever waits for the answer gets. Does nothing after the end."""
        if not self._done.done():
            self._link.connection.cancel(self.exchange, error.message)
            self._link.schedule_flush()
            self._finish(error)

    def on_event(self, event: Event) -> None:
        """The service passes on each event of the call."""
        if self._done.done():
            return  # it was given up; what came in the same read as the reason is of no use
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
        wanted = self._wanted.get(wire_stream.name)
        if wanted is not None and not wanted.done():
            wanted.set_result(stream)
            return
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

    def _forward_to(self, span: tuple[float, float] | None) -> None:
        if span is not None:
            self._span = Span(span[0], span[1] - span[0])

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
        if self.feeder is not None and self.feeder is not current_task():
            self.feeder.cancel()  # its source may never give anything again
        for _, stream in self._streams.values():
            stream.end(error)
        for wanted in self._wanted.values():
            if not wanted.done():
                wanted.set_result(None)
        if not self._done.done():
            self._done.set_result(None)
