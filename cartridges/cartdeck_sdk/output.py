"""Owns what a handler says: bytes, items, progress, logs, the final word.

It does not know who listens. `Output` is for coroutines; `WorkerOutput` has the same names for worker threads.
"""

from asyncio import AbstractEventLoop, Future, run_coroutine_threadsafe, sleep
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from cartdeck_protocol.caps import CapDefinition, OutputDefinition
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Connection, Exchange, OutStream, encode_item
from cartdeck_sdk.keepalive import Report, run_reporting
from cartdeck_sdk.log_queue import LogQueue
from cartdeck_sdk.outbox import Outbox
from cartdeck_sdk.shortcut import Shortcut

T = TypeVar("T")

MOST_PENDING_BYTES: Final = 256 * 1024
"""A write waits once this much of its stream has not left: enough to keep the pipe full between two turns."""
_WRITES_PER_TURN: Final = 16_384
"""Then others have a turn: 40 ms of tiny items, which reach `MOST_PENDING_BYTES` only after a third of a second. 60
calls that write them kept a CANCEL waiting for twenty seconds."""


class Link(Protocol):
    """What an output needs of the service."""

    loop: AbstractEventLoop
    connection: Connection
    outbox: Outbox
    keepalive_s: float

    @property
    def is_congested(self) -> bool: ...

    def schedule_flush(self) -> None: ...
    def flush(self) -> None: ...
    def run_in_worker(self, function: Callable[[], T]) -> "Future[T]": ...


def _author_mistake(message: str) -> CartdeckError:
    """A handler that uses its output wrongly: the cartridge's author is told, not the caller blamed."""
    return failure(Code.HANDLER_FAILED, message)


class OutputStream:
    """One output: `write` for bytes, `item` for a sequence. Both wait while the reader is behind."""

    def __init__(self, link: Link, exchange: Exchange, definition: OutputDefinition) -> None:
        self._link = link
        self._exchange = exchange
        self._definition = definition
        self._stream: OutStream | None = None
        self._shortcut: Shortcut | None = None
        self._writes = 0
        self.is_merged = True
        """False sends each write as a CHUNK of its own: for measurements, since chunk bounds carry no meaning."""

    async def write(self, data: bytes | str) -> None:
        """Send bytes, or text as UTF-8. CANCELLED when the caller gave up."""
        if self._definition.is_sequence:
            raise _author_mistake(f"output {self._definition.name or 'main'} is a sequence: use item()")
        if isinstance(data, str):
            data = data.encode()
        elif not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]  # an author may pass anything
            raise _author_mistake(f"write() takes text or bytes, found {type(data).__name__}")
        await self._send(bytes(data))

    async def item(self, value: Any) -> None:
        """Send one item (bytes, text, numbers, lists, maps). CANCELLED when the caller gave up."""
        if not self._definition.is_sequence:
            raise _author_mistake(f"output {self._definition.name or 'main'} is bytes: use write()")
        await self._send(encode_item(value))

    def shortcut(self) -> Shortcut:
        """A way for one thread that computes to send pieces of this output itself, of at most 2 KiB. It is closed at
        first, by whatever is written here, and at the end of the call."""
        if self._shortcut is None:
            self._shortcut = Shortcut(self._link, self._stream or self._open())
        return self._shortcut

    def close_shortcut(self) -> None:
        """The output is about to end."""
        if self._shortcut is not None:
            self._shortcut.close()

    async def _send(self, data: bytes) -> None:
        if self._shortcut is not None:
            self._shortcut.close()
        stream = self._stream or self._open()
        stream.write(data)
        link = self._link
        link.schedule_flush()
        if stream.pending_bytes >= MOST_PENDING_BYTES:
            link.flush()
            while stream.pending_bytes >= MOST_PENDING_BYTES and stream.error is None:
                await self._room(stream)
            if stream.error is not None:
                raise stream.error
        self._writes += 1
        if self._writes >= _WRITES_PER_TURN:
            self._writes = 0
            await sleep(0)

    def _open(self) -> OutStream:
        definition = self._definition
        self._stream = self._link.connection.open_stream(
            self._exchange, name=definition.name, is_sequence=definition.is_sequence
        )
        self._stream.is_merged = self.is_merged
        return self._stream

    async def _room(self, stream: OutStream) -> None:
        waiter: Future[None] = self._link.loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        stream.on_writable = wake
        try:
            await waiter
        finally:
            stream.on_writable = None


class Output:
    """What an `async def` handler is given. Leaving the handler is success; an error it raises is the answer."""

    def __init__(self, link: Link, exchange: Exchange, definition: CapDefinition) -> None:
        self._link = link
        self._exchange = exchange
        self._definition = definition
        self._logs = LogQueue(link, exchange)
        self._outputs: dict[str, OutputStream] = {}
        self._main = self.stream("") if "" in definition.outputs else None
        self.final_progress = 1.0
        self.provenance: dict[str, Any] = {}
        self._last_progress: tuple[float, str, str | None, float | None, float | None] = (0.0, "", None, None, None)

    def stream(self, name: str) -> OutputStream:
        """A named output beside the main one, as the definition lists it."""
        found = self._outputs.get(name)
        if found is None:
            definition = self._definition.outputs.get(name)
            if definition is None:
                known = ", ".join(one or "(main)" for one in self._definition.outputs)
                raise _author_mistake(f"{self._definition.alias} has no output {name!r}; it has: {known}")
            found = self._outputs[name] = OutputStream(self._link, self._exchange, definition)
        return found

    async def write(self, data: bytes | str) -> None:
        """Send bytes, or text as UTF-8, on the main output. CANCELLED when the caller gave up."""
        await (self._main or self.stream("")).write(data)

    async def item(self, value: Any) -> None:
        """Send one item on the main output, a sequence. CANCELLED when the caller gave up."""
        await (self._main or self.stream("")).item(value)

    def progress(
        self,
        fraction: float,
        message: str = "",
        *,
        phase: str | None = None,
        work: float | None = None,
        total: float | None = None,
    ) -> None:
        """How far the whole call is, in [0, 1]; `work` and `total` count bytes, tokens, files or steps of `phase`."""
        self._last_progress = (fraction, message, phase, work, total)
        self._logs.progress(fraction, message, phase=phase, work=work, total=total)
        self._link.flush()  # at once: the handler may be about to hold the loop

    def repeat_progress(self) -> None:
        """Say the last progress once more, 0 where there was none: the call is alive."""
        fraction, message, phase, work, total = self._last_progress
        self.progress(fraction, message, phase=phase, work=work, total=total)

    def log(self, level: str, message: str) -> None:
        """A line for the caller's log; `level` is debug, info, warning or error."""
        self._logs.line(level, message)
        self._link.flush()

    def finish(self, *, progress: float = 1.0, provenance: Mapping[str, Any] | None = None) -> None:
        """What END carries. The call ends when the handler returns."""
        self.final_progress = progress
        if provenance is not None:
            self.provenance = dict(provenance)

    def settle(self) -> None:
        """The terminal is about to leave: what waits goes first, and nothing comes past the loop any more."""
        self._logs.release()
        for stream in self._outputs.values():
            stream.close_shortcut()

    async def run_with_keepalive(
        self, progress: float, message: str, function: Callable[[Report], T], *, phase: str | None = None
    ) -> T:
        """Run `function(report)` in a worker thread; repeat the last progress every `keepalive_s` so that the call
        stays alive. `report(fraction, message=None, work=None, total=None)` may be called from the function's thread.

        A cancel ends the wait at once; the function itself should look at `request.is_cancelled`.
        """
        return await run_reporting(self._link, self, function, progress=progress, message=message, phase=phase)


class WorkerStream:
    """`OutputStream` for a worker thread: the same names, blocking."""

    def __init__(self, loop: AbstractEventLoop, stream: OutputStream) -> None:
        self._loop = loop
        self._stream = stream

    def write(self, data: bytes | str) -> None:
        run_coroutine_threadsafe(self._stream.write(data), self._loop).result()

    def item(self, value: Any) -> None:
        run_coroutine_threadsafe(self._stream.item(value), self._loop).result()


class WorkerOutput:
    """What a `def` handler is given, in its worker thread."""

    def __init__(self, loop: AbstractEventLoop, output: Output) -> None:
        self._loop = loop
        self._output = output

    def stream(self, name: str) -> WorkerStream:
        return WorkerStream(self._loop, self._output.stream(name))

    def write(self, data: bytes | str) -> None:
        run_coroutine_threadsafe(self._output.write(data), self._loop).result()

    def item(self, value: Any) -> None:
        run_coroutine_threadsafe(self._output.item(value), self._loop).result()

    def progress(
        self,
        fraction: float,
        message: str = "",
        *,
        phase: str | None = None,
        work: float | None = None,
        total: float | None = None,
    ) -> None:
        self._later(lambda: self._output.progress(fraction, message, phase=phase, work=work, total=total))

    def log(self, level: str, message: str) -> None:
        self._later(lambda: self._output.log(level, message))

    def finish(self, *, progress: float = 1.0, provenance: Mapping[str, Any] | None = None) -> None:
        self._output.finish(progress=progress, provenance=provenance)

    def _later(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is leaving
            self._loop.call_soon_threadsafe(function)
