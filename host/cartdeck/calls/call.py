"""Owns one call of a caller: from the arguments to the result, as events or as a whole.

It does not know how a session is found. It holds no task group, no cancel scope and no memory stream, which cost a
prototype 23, 5 and 8 µs of a call; and so a call may be opened in one task and closed in another, and its errors
arrive bare. Only arguments that are files or iterables have a task, which belongs to the engine.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from cartdeck.calls.arguments import prepare
from cartdeck.calls.feeding import Feeding
from cartdeck.calls.given import checked_arguments, checked_keep_bytes, checked_timeout
from cartdeck.calls.intake import Incoming, Intake
from cartdeck.calls.window import Window
from cartdeck.event_source import EventSource
from cartdeck.events import End, Event, Log, Progress, Result
from cartdeck.request import Request
from cartdeck.switch import Switch
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import InStream, Logged


class Call(Request, EventSource[Event]):
    """A call of a cap. Use it as an async context manager and iterate over it; or let the engine's `run` do both.

    Leaving the context before the end cancels the call. `result` is there once the iteration has come to its end.
    """

    __slots__ = (
        "_arguments", "_cap", "_end", "_engine", "_error", "_feeding", "_floor", "_has_told_end", "_intake",
        "_is_cancelled", "_is_collecting", "_keep_bytes", "_loop", "_streams", "_taken_at_s",
        "_timeout_s", "_timer", "_waiter",
    )  # fmt: skip

    def __init__(
        self,
        engine: Switch,
        cap: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout_s: float | None,
        keep_bytes: int | None,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._cap = cap
        self._arguments = arguments
        self._timeout_s = timeout_s
        self._keep_bytes = keep_bytes
        self._is_collecting = False
        self._is_cancelled = False
        self._streams: dict[int, Incoming] = {}
        self._feeding: Feeding | None = None
        self._floor = 0.0
        """The highest progress told so far: what a caller sees never falls."""
        self._taken_at_s = 0.0
        self._end: End | None = None
        self._has_told_end = False
        self._error: CartdeckError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._intake: Intake | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- for the caller

    async def next_events(self) -> list[Event]:
        """The next events, waiting for at least one; [] after the end. Raises the call's error, after all events
        that came before it."""
        intake = self._begun()
        clock = self._engine.clock
        while True:
            while intake:
                self._taken_at_s = clock.now_s
                events = self._take(intake)
                if self.session is not None and self.session.connection.has_outgoing:
                    self.session.flush_soon()  # the credit for what was taken
                if events:
                    return events
            if self._error is not None:
                intake.hand_over()
                raise self._error.with_traceback(None)  # it may be the error of many calls
            if self._end is not None:
                if self._has_told_end:
                    return []
                self._has_told_end = True
                intake.hand_over()
                return [self._end]
            await self._wait()

    async def collect(self) -> Result:
        """Wait for the end without looking at the events; the result. Raises the call's error."""
        intake = self._begun()
        self._is_collecting = True
        while intake:
            self._take(intake)
        if self.session is not None and self.session.connection.has_outgoing:
            self.session.flush_soon()  # the credit for what was taken
        while not self.is_answered:
            await self._wait()
        intake.hand_over()
        return self.result

    @property
    def result(self) -> Result:
        """What the call gave. Raises its error if it failed, RuntimeError before all of its output was taken."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._end is None or self._intake is None:
            raise RuntimeError("the call has not ended: iterate over its events first, or use run()")
        if not self._intake.is_whole:
            raise RuntimeError("output of the call was not taken: iterate over its events to the end, or use run()")
        return Result(self._intake.outputs, self._end.progress, self._end.provenance)

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the call up, wherever it stands. It ends with CANCELLED as soon as the cartridge has answered, at the
        latest after the setting `call.cancel_s`. Does nothing after the end."""
        if not self.is_answered:
            self._give_up(failure(Code.CANCELLED, f"{self.title} was cancelled: {reason}"), is_answer=False)

    async def close(self) -> None:
        """As `leave`; it waits for nothing."""
        self.leave()

    def leave(self) -> None:
        """Nobody will look at the call again but for its result: what waits is dropped, and a call that runs is
        cancelled."""
        if self._intake is not None:
            self._intake.drop()
            self._intake.hand_over()
        self.cancel("the caller left the call")

    # -- the beginning and the end

    def begin(self) -> None:
        """Route, check and open. Raises at once what is wrong with the cap or the arguments."""
        if self._loop is not None:
            raise RuntimeError("a call can be opened once")
        engine = self._engine
        engine.check_open()
        self._timeout_s = checked_timeout(self._timeout_s)
        keep = checked_keep_bytes(self._keep_bytes)
        arguments = checked_arguments(self._arguments)
        self._loop = engine.loop
        route = engine.router.route_text(self._cap, arguments)
        engine.router.check_default(self._cap, route, arguments)
        self._intake = Intake(
            engine.backlog,
            keep_bytes=engine.settings.call.keep_bytes if keep is None else keep,
            is_sharing=keep is None,
            log_lines=engine.settings.call.log_lines,
            cartridge=route.cartridge.name,
        )
        engine.submit(self, route, prepare(route.definition, route.instance, arguments))
        if self._timeout_s is not None and not self.is_answered:
            self._timer = engine.loop.call_later(self._timeout_s, self._on_timeout)

    def _begun(self) -> Intake:
        if self._intake is None:
            raise RuntimeError("the call is not open: use `async with engine.call(...) as call`")
        return self._intake

    def _on_timeout(self) -> None:
        message = f"{self.title} did not end within {self._timeout_s:g} s"
        self._give_up(failure(Code.TIMED_OUT, message, phase="queued" if self.is_waiting else None), is_answer=True)

    def _give_up(self, error: CartdeckError, *, is_answer: bool) -> None:
        """Withdraw the request. The caller is answered now, or by the terminal that follows CANCEL."""
        self._is_cancelled = True
        if self.is_waiting:
            self._engine.leave(self)
            is_answer = True
        elif self.session is not None and self.exchange is not None:
            self.session.give_up(self.exchange, error)
        else:
            is_answer = True
        if is_answer:
            self.fail(error)

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        if self._is_cancelled:
            details = {"provenance": provenance} if provenance else {}
            self.on_failed(failure(Code.CANCELLED, f"{self.title} was cancelled", details=details))
            return
        self._end = End(max(progress, self._floor), provenance)
        self._close()

    def on_failed(self, error: CartdeckError) -> None:
        self._error = error
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._feeding is not None:
            self._feeding.stop()
        for incoming in self._streams.values():  # those that a failure cut off
            if incoming.window is not None:
                incoming.window.close()
        self._wake()

    # -- arguments out

    def on_opened(self) -> None:
        prepared, session, exchange = self.prepared, self.session, self.exchange
        assert prepared is not None
        assert session is not None
        assert exchange is not None
        if not prepared.is_complete:
            self._feeding = Feeding(
                session, exchange, start_task=self._engine.start_task, on_failure=self._on_source_failure
            )
            try:
                self._feeding.start(prepared.streams)
            except CartdeckError as error:  # the cartridge takes fewer streams than these
                self._on_source_failure(error)

    def can_be_sent_again(self) -> bool:
        return not self._is_cancelled and self.prepared is not None and self.prepared.can_be_sent_again

    def send_again(self) -> None:
        super().send_again()
        if self._feeding is not None:
            self._feeding.stop()

    def _on_source_failure(self, error: CartdeckError) -> None:
        if not self.is_answered:
            self._give_up(error, is_answer=True)

    # -- events in; all on the loop's thread

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        intake = self._intake
        assert intake is not None
        assert self.route is not None
        engine = self._engine
        limits = engine.settings.wire
        window = None
        if payload is None:
            window = Window(stream, engine.reserve, credit=limits.initial_credit, grown_credit=limits.grown_credit)
        is_text = stream.name in self.route.text_outputs
        incoming = intake.start(stream, window, max_item=limits.max_item_bytes, is_text=is_text)
        if payload is None:
            self._streams[stream.number] = incoming
        else:
            if payload:
                self._add(intake, incoming, payload)
            self._add_end(intake, incoming)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        intake = self._intake
        assert intake is not None
        self._add(intake, self._streams[stream.number], payload)

    def on_stream_end(self, stream: InStream) -> None:
        intake = self._intake
        assert intake is not None
        incoming = self._streams.pop(stream.number)
        if incoming.window is not None:
            incoming.window.close()
        self._add_end(intake, incoming)

    def _add(self, intake: Intake, incoming: Incoming, payload: bytes) -> None:
        if not intake.waiting_chunks:
            self._taken_at_s = self._engine.clock.now_s
        if self._is_collecting:
            self._absorb(intake, incoming, payload)
        else:
            try:
                intake.add_chunk(incoming, payload)
            except CartdeckError as error:  # there is no room left for what waits
                self._on_bad_output(error)
            else:
                self._wake()

    def _add_end(self, intake: Intake, incoming: Incoming) -> None:
        if self._is_collecting:
            self._absorb(intake, incoming, None)
        else:
            intake.add_end(incoming)
            self._wake()

    def _absorb(self, intake: Intake, incoming: Incoming, payload: bytes | None) -> None:
        try:
            if payload is None:
                intake.absorb_end(incoming)
            else:
                intake.absorb(incoming, payload)
        except CartdeckError as error:
            self._on_bad_output(error)

    def _take(self, intake: Intake) -> list[Event]:
        try:
            return intake.take()
        except CartdeckError as error:
            self._on_bad_output(error)
            return []

    def _on_bad_output(self, error: CartdeckError) -> None:
        """An item is cut off, too large, or no msgpack: damage of this call alone."""
        if self.is_answered:
            self._error = self._error or error
        else:
            self._give_up(error, is_answer=True)

    def on_log(self, event: Logged) -> None:
        if event.progress is not None or event.work is not None or event.phase is not None:
            self._tell(event.message, event.phase, fraction=event.progress, work=event.work, total=event.total)
        elif not self._is_collecting and self._intake is not None:
            self._intake.add_log(Log(event.level, event.message, self.key.cartridge))
            self._wake()

    def on_notice(self, message: str, phase: str) -> None:
        self._tell(message, phase, fraction=0.0, work=None, total=None)

    def _tell(
        self, message: str, phase: str | None, *, fraction: float | None, work: float | None, total: float | None
    ) -> None:
        if fraction is not None:
            fraction = self._floor = max(self._floor, fraction)
        if not self._is_collecting and self._intake is not None:
            self._intake.add_progress(Progress(fraction, message, phase, work, total, self.key.cartridge))
            self._wake()

    def reader_since_s(self, now_s: float) -> float | None:
        intake = self._intake
        if intake is None or not intake.waiting_chunks:
            return None
        is_held_up = any(incoming.stream.window <= 0 for incoming in self._streams.values())
        return self._taken_at_s if is_held_up else None

    # -- waiting

    async def _wait(self) -> None:
        assert self._loop is not None
        waiter = self._waiter
        if waiter is None or waiter.done():
            waiter = self._waiter = self._loop.create_future()
        await waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
