"""Owns one call inside a cartridge: arguments gathered, the handler run, one terminal answered.

It does not know the pipe. A handler's error of the code table is the answer; any other exception is HANDLER_FAILED.
"""

import traceback
from asyncio import CancelledError, Task, wait, wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

from cartdeck_protocol.caps import ArgumentDefinition
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    ArgumentsEnded,
    CancelReceived,
    ChunkReceived,
    Event,
    Exchange,
    ExchangeDamaged,
    RequestReceived,
    StreamEnded,
    StreamStarted,
)
from cartdeck_sdk.cartridge import Registration
from cartdeck_sdk.eager import start_at_once
from cartdeck_sdk.output import Link, Output, WorkerOutput
from cartdeck_sdk.peer import Peer
from cartdeck_sdk.peer_call import PeerLink
from cartdeck_sdk.received_stream import ReceivedStream
from cartdeck_sdk.request import Request

MOST_COLLECTED_BYTES: Final = 256 * 1024 * 1024
"""The most that the collected arguments of one call may hold together; larger ones must be streamed ones."""


class Host(Link, PeerLink, Protocol):
    """What a call needs of the service."""

    def leave(self, exit_code: int) -> None: ...
    def submit(self, function: Callable[[], Any]) -> "Future[Any]": ...
    def answered(self) -> None: ...


class HandlerTask:
    """One request from its REQ to its terminal."""

    __slots__ = (
        "_collected", "_collected_bytes", "_entry", "_exchange", "_has_begun", "_host", "_is_abandoned", "_is_started",
        "_peer", "_request", "_streams", "_task",
    )  # fmt: skip

    def __init__(self, host: Host, exchange: Exchange, entry: Registration) -> None:
        self._host = host
        self._exchange = exchange
        self._entry = entry
        self._collected: dict[int, tuple[str, list[bytes]]] = {}
        self._collected_bytes = 0
        self._streams: dict[int, ReceivedStream] = {}
        self._task: Task[None] | None = None
        self._is_started = False
        self._has_begun = False
        self._is_abandoned = False
        self._peer = Peer(host, exchange)
        self._request = Request(exchange, entry.definition, self._peer)
        exchange.owner = self

    def begin(self, event: RequestReceived) -> None:
        """Take the request; start the handler as soon as what it needs is there."""
        if not self._takes_arguments:
            return  # what ended it came in the same read, and its event is on the way
        request, definition, host = self._request, self._entry.definition, self._host
        try:
            for argument in self._entry.streamed:
                stream = ReceivedStream(host.loop, host.schedule_flush, is_sequence=argument.is_sequence)
                request.set_stream(argument, stream, is_given=False)
            for name, data in event.arguments.items():
                argument = definition.arguments.get(name) or definition.argument(name)
                if argument.is_stream or argument.is_sequence:
                    stream = request.stream(argument.name)
                    stream.feed(data)
                    stream.end()
                    request.set_stream(argument, stream, is_given=True)
                else:
                    request.set_value(argument, data)
            if event.complete:
                self._end_arguments()
        except CartdeckError as error:
            self._fail(error)

    def on_event(self, event: Event) -> None:
        try:
            if isinstance(event, CancelReceived):
                self._stop(event.reason)
            elif isinstance(event, ExchangeDamaged):
                self._stop(event.error.message)
            elif self._takes_arguments:
                self._on_argument(event)
        except CartdeckError as error:
            self._fail(error)

    @property
    def _takes_arguments(self) -> bool:
        """False once the call has failed, or was cancelled before it began: the rest of the same read, which was
        taken apart before that was known, still comes."""
        exchange = self._exchange
        return exchange.is_open and (self._is_started or not exchange.cancelled)

    def abandon(self, reason: str) -> None:
        """The process is on its way out: stop the handler. It says nothing more: the host has closed the pipe, or
        learns from the exit what became of the call."""
        self._is_abandoned = True
        self._exchange.cancelled = True
        self._stop(reason)

    # arguments

    def _on_argument(self, event: Event) -> None:
        if isinstance(event, ChunkReceived):
            self._on_chunk(event)
        elif isinstance(event, StreamStarted):
            self._on_stream_start(event)
        elif isinstance(event, StreamEnded):
            self._on_stream_end(event.stream.number)
        elif isinstance(event, ArgumentsEnded):
            self._end_arguments()

    def _on_stream_start(self, event: StreamStarted) -> None:
        argument = self._entry.definition.argument(event.stream.name)
        number = event.stream.number
        self._check_place(argument)
        if argument.is_stream or argument.is_sequence:
            stream = self._request.stream(argument.name)
            stream.attach(event.stream)
            self._request.set_stream(argument, stream, is_given=True)
            self._streams[number] = stream
            if event.payload is not None:
                stream.feed(event.payload)
                stream.end()
            elif not self._collected:
                self._start()  # the arguments that are gathered come first: what is missing now has its default
            return
        self._collected[number] = (argument.name, [])
        if event.payload is not None:
            self._collect(number, event.payload)
            self._on_stream_end(number)

    def _check_place(self, argument: ArgumentDefinition) -> None:
        """BAD_ARGUMENT for one that was there before, or that comes too late: the handler may have read its default."""
        name = argument.name
        if name in self._request.given or any(name == one for one, _ in self._collected.values()):
            raise failure(Code.BAD_ARGUMENT, f"the argument {name} came twice", argument=name)
        if self._is_started and not (argument.is_stream or argument.is_sequence):
            message = f"the argument {name} came behind a streamed one; name it before those that are streamed"
            raise failure(Code.BAD_ARGUMENT, message, argument=name)

    def _on_chunk(self, event: ChunkReceived) -> None:
        number = event.stream.number
        stream = self._streams.get(number)
        if stream is not None:
            stream.feed(event.payload)
        else:
            self._collect(number, event.payload)
            event.stream.take()

    def _collect(self, number: int, payload: bytes) -> None:
        name, chunks = self._collected[number]
        chunks.append(payload)
        self._collected_bytes += len(payload)
        if self._collected_bytes > MOST_COLLECTED_BYTES:
            raise failure(
                Code.BAD_ARGUMENT,
                f"the arguments of {self._entry.definition.alias} are larger than {MOST_COLLECTED_BYTES} bytes",
                argument=name,
            )

    def _on_stream_end(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.end()
        else:
            name, chunks = self._collected.pop(number)
            self._request.set_value(self._entry.definition.argument(name), b"".join(chunks))
            if self._streams and not self._collected:
                self._start()  # one that is streamed has begun, and may not end before somebody reads it

    # the handler

    def _end_arguments(self) -> None:
        """All of them are there or on their way: one that is streamed and was not given is empty. Raises
        MISSING_ARGUMENT."""
        entry, request = self._entry, self._request
        if not entry.required <= request.given:
            entry.definition.check_complete(request.given)
        for argument in entry.streamed:
            if argument.name not in request.given:
                request.stream(argument.name).end()
        self._start()

    def _start(self) -> None:
        """Run the handler, unless it runs. Others that are streamed may come yet. Raises MISSING_ARGUMENT."""
        if self._is_started:
            return
        entry, request = self._entry, self._request
        if not entry.required <= request.given:
            entry.definition.check_complete(request.given | {argument.name for argument in entry.streamed})
        self._is_started = True
        output = Output(self._host, self._exchange, entry.definition)
        self._peer.output = output
        task = start_at_once(self._host.loop, self._run(output))
        if not task.done():
            self._task = task

    async def _run(self, output: Output) -> None:
        self._has_begun = True
        exit_code: int | None = None
        error: CartdeckError | None = None
        try:
            if self._entry.is_coroutine:
                await self._entry.function(self._request, output)
            else:
                await self._run_in_worker(output)
        except CancelledError:
            error = self._cancelled(output)
        except CartdeckError as found:
            error = self._cancelled(output) if self._request.is_cancelled else found
        except (SystemExit, KeyboardInterrupt) as found:
            # alive but useless is the worst state: answer, then leave, so that the host starts a new process
            exit_code = found.code if isinstance(found, SystemExit) and isinstance(found.code, int) else 70
            reason = found.__cause__  # `raise SystemExit(code) from failure(...)` answers with that failure
            error = (
                reason
                if isinstance(reason, CartdeckError)
                else failure(
                    Code.HANDLER_FAILED, f"the handler of {self._entry.definition.alias} ended the process: {found!r}"
                )
            )
        except BaseException as found:
            output.log("error", traceback.format_exc())
            error = failure(Code.HANDLER_FAILED, f"{type(found).__name__}: {found}")
            if not isinstance(found, Exception):
                exit_code = 70
        if exit_code is not None:
            # before the answer: a caller that has it may call again at once, and must not meet a process that leaves
            message = f"the handler of {self._entry.definition.alias} ended the process"
            self._host.connection.refuse(failure(Code.CARTRIDGE_DIED, message))
        self._answer(output, error)
        if exit_code is not None:
            self._host.leave(exit_code)

    async def _run_in_worker(self, output: Output) -> None:
        function, request, host = self._entry.function, self._request, self._host
        worker_output = WorkerOutput(host.loop, output)
        work = host.submit(lambda: function(request, worker_output))
        request.on_cancel(work.cancel)  # of use while it waits for a thread; one that runs looks at the request itself
        end = wrap_future(work, loop=host.loop)
        while not (await wait((end,), timeout=host.keepalive_s))[0]:
            if self._exchange.is_open and not request.is_cancelled:
                output.repeat_progress()
        await end

    def _cancelled(self, output: Output) -> CartdeckError:
        details = {"provenance": output.provenance} if output.provenance else None
        return failure(Code.CANCELLED, self._request.cancel_reason or "the handler was cancelled", details=details)

    def _answer(self, output: Output, error: CartdeckError | None) -> None:
        connection, exchange = self._host.connection, self._exchange
        self._peer.cancel_all("the calling handler has ended")
        for stream in self._streams.values():
            stream.discard()
        # these lead back here: without this each call is work for the garbage collector, a quarter of its cost
        self._task = exchange.owner = None
        if self._is_abandoned:
            return
        output.settle()
        if error is None:
            try:
                connection.end(exchange, progress=output.final_progress, provenance=output.provenance)
            except CartdeckError as found:
                error = found
            except (TypeError, ValueError, OverflowError) as found:
                error = failure(Code.HANDLER_FAILED, f"the provenance is not plain data: {found}")
        if error is not None:
            connection.fail(exchange, error)
        self._host.answered()

    def _stop(self, reason: str) -> None:
        self._request.cancel(reason)
        self._peer.cancel_all(reason)
        error = failure(Code.CANCELLED, reason)
        self._request.end_streams(error)
        if self._has_begun:
            if self._task is not None and self._entry.is_coroutine:
                self._task.cancel()
            return
        if self._exchange.is_open and not self._is_abandoned:
            self._host.connection.fail(self._exchange, error)
            self._host.schedule_flush()

    def _fail(self, error: CartdeckError) -> None:
        """Before the handler ran, or beside it: the answer is this error."""
        if self._is_started:
            self._stop(error.message)
        self._host.connection.fail(self._exchange, error)
        self._host.schedule_flush()
