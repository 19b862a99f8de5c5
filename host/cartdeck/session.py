"""Owns one running cartridge: its process and connection, the requests open there, its health, and its end.

It does not know which requests come to it, nor what follows its end: the pool decides both.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cartdeck.channel import Channel
from cartdeck.clock import Clock
from cartdeck.discovery import Cartridge
from cartdeck.environment import HEARTBEAT_VARIABLE, KEEPALIVE_VARIABLE, child_environment, new_session_mark
from cartdeck.handshake import IDENTITY_ALIAS, IdentityProbe, check_manifest, within_limits
from cartdeck.health import Health
from cartdeck.log_ring import LogRing
from cartdeck.obituary import last_details, named, obituary
from cartdeck.overdue import overdue
from cartdeck.policy import SessionKey
from cartdeck.process import Process, spawn
from cartdeck.request import Request
from cartdeck.settings import Settings
from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure

_MOST_DRAIN_S = 0.5
"""A dead process's pipe that a surviving grandchild keeps busy is read for so long at most."""


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class SessionWatcher:
    """Whom a session tells. All are called on the loop's thread."""

    request_ended: Callable[["Session"], None]
    """A request's terminal came: there is room for another."""
    peer_called: Callable[["Session", wire.RequestReceived], None]
    """The cartridge calls a peer."""
    ended: Callable[["Session", CartdeckError | None], None]
    """The process takes no more requests and its callers know; the error is None when it was asked to end."""


class Session:
    """One process of a cartridge, with at most one instance."""

    def __init__(
        self, key: SessionKey, cartridge: Cartridge, settings: Settings, clock: Clock, watcher: SessionWatcher
    ) -> None:
        self.key = key
        self.cartridge = cartridge
        self.state = State.STARTING
        self.has_answered = False
        """It has ended a request, with a result or an error: it works."""
        self.is_closed_to_new = False
        """It answers what is open and takes nothing more: being unloaded, or it did not answer a CANCEL."""
        self.open_requests = 0
        self.used_at_s = clock.now_s
        self.health: Health | None = None
        self._settings = settings
        self._lines = settings.log.error_lines
        self._clock = clock
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        limits = wire.Limits(
            max_chunk=settings.wire.max_chunk_bytes,
            initial_credit=settings.wire.initial_credit,
            max_item=settings.wire.max_item_bytes,
        )
        self.connection = wire.Connection(wire.Role.HOST, limits=limits, software="cartdeck")
        self.process: Process | None = None
        self._channel: Channel | None = None
        self._hello: asyncio.Future[wire.HelloReceived] | None = None
        self._probe: IdentityProbe | None = None
        self._pipe_error: CartdeckError | None = None
        self._ending: asyncio.Task[None] | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.StreamStarted: self._on_stream,
            wire.StreamEnded: self._on_stream_end,
            wire.Logged: self._on_log,
            wire.Finished: self._on_finished,
            wire.Failed: self._on_failed,
            wire.ExchangeDamaged: self._on_damage,
            wire.RequestReceived: self._on_peer_call,
            wire.ArgumentsEnded: self._on_arguments_end,
            wire.CancelReceived: self._on_cancel,
            wire.HelloReceived: self._on_hello,
            wire.HeartbeatReceived: self._on_heartbeat,
            wire.ConnectionLogged: self._on_connection_log,
            wire.ConnectionRefused: self._on_refused,
        }

    # -- the start

    async def start(self) -> None:
        """Start the process and shake hands. Raises START_FAILED, VERSION_MISMATCH, MANIFEST_DRIFT or
        IDENTITY_FAILED; the caller ends the session then, and also when it is cancelled."""
        limits = self._settings.start
        self._check_wanted()
        process = self.process = self._spawn()
        process.on_exit = self._on_exit
        self._channel = Channel(self.connection, process.pipes, on_events=self._on_events, on_lost=self._on_lost)
        try:
            async with asyncio.timeout(limits.hard_s):
                await self._shake_hands(process)
        except TimeoutError:
            raise failure(
                Code.START_FAILED, f"{self.key} was not ready after {limits.hard_s:g} s, the most that is allowed"
            ) from None
        self._check_wanted()
        self.state = State.READY
        self.health = Health(self._settings.health, process, self._clock.now_s)
        self.used_at_s = self._clock.now_s

    def _check_wanted(self) -> None:
        if self._ending is not None:
            raise failure(Code.ABORTED, f"{self.key} was ended while it started")

    def fail_start(self, error: CartdeckError) -> None:
        """`start` raised: nobody can use the process. One that died meanwhile has said so itself."""
        if self._ending is None:
            self._fall(named(error, str(self.key), self.process, lines=self._lines))

    def _spawn(self) -> Process:
        settings = self._settings
        name = self.cartridge.name
        logger = logging.getLogger(f"cartdeck.cartridge.{name}")
        environment = child_environment(
            mark=new_session_mark(),
            may_use_network=name in settings.network,
            durations={
                KEEPALIVE_VARIABLE: settings.health.keepalive_s,
                HEARTBEAT_VARIABLE: settings.health.heartbeat_s,
            },
            host_pid=os.getpid() if self.cartridge.is_child_of_host else None,
            extra=settings.pass_environment,
        )
        log = LogRing(ring_bytes=settings.log.ring_bytes, line_bytes=settings.log.line_bytes, on_line=logger.info)
        return spawn(self.cartridge.command, environment=environment, log=log, pipe_bytes=settings.wire.pipe_bytes)

    async def _shake_hands(self, process: Process) -> None:
        limits = self._settings.start
        self._hello = self._loop.create_future()
        self._probe = IdentityProbe()
        self.connection.send_hello()
        self.flush()
        hello = await within_limits(self._hello, process, step="hello", limits=limits)
        check_manifest(self.cartridge.manifest, hello.manifest)
        identity = self.cartridge.manifest.cap(IDENTITY_ALIAS)
        argument = identity.main_argument
        name = "data" if argument is None else argument.name
        exchange = self.connection.request(str(identity.urn), {name: self._probe.sent})
        exchange.owner = self._probe
        self.flush()
        await within_limits(self._probe.answer, process, step="identity", limits=limits)

    # -- requests

    @property
    def cartridge_holds_instance(self) -> bool:
        return self.cartridge.manifest.holds_instances

    def requests(self) -> list[Request]:
        """The requests that are open here."""
        return [one.owner for one in self.connection.exchanges.values() if one.is_requester]

    async def wait_idle(self) -> None:
        """Wait until no request is open here."""
        if self.open_requests:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    @property
    def is_open_to_new(self) -> bool:
        health = self.health
        return self.state is State.READY and not self.is_closed_to_new and (health is None or not health.is_suspect)

    def open(self, request: Request) -> None:
        """Send the request. Raises what the connection refuses (a meta too large); then nothing was sent."""
        route, prepared = request.route, request.prepared
        assert route is not None
        assert prepared is not None
        connection = self.connection
        is_alone = not connection.exchanges
        exchange = connection.request(route.urn, prepared.inline, complete=prepared.is_complete)
        exchange.owner = request
        request.exchange = exchange
        request.session = self
        request.heard_at_s = request.advanced_at_s = self._clock.now_s
        self.open_requests += 1
        request.on_opened()
        # A lone caller's frame leaves now and saves a turn of the loop; a crowd's leave together at its end.
        if is_alone:
            self.flush()
        else:
            self.flush_soon()

    def give_up(self, request: Request, error: CartdeckError) -> None:
        """Send CANCEL. The caller of this has answered, or `error` is the answer unless a terminal comes in time."""
        exchange = request.exchange
        if exchange is not None and exchange.is_open and not exchange.cancelled:
            self.connection.cancel(exchange, error.message)
            self._await_terminal(request, error)
            self.flush()

    def _await_terminal(self, request: Request, error: CartdeckError) -> None:
        if request.cancel_timer is None:
            times = self._settings.call
            request.cancel_timer = self._loop.call_later(times.cancel_s, self._on_unanswered, request, error)

    def _on_unanswered(self, request: Request, error: CartdeckError) -> None:
        """No terminal after CANCEL: answer for the process, send nothing new there, and end it when it is free."""
        request.cancel_timer = None
        exchange = request.exchange
        request.fail(error)
        if exchange is None or not exchange.is_open or self.state is not State.READY:
            return
        self.is_closed_to_new = True
        if self._is_free_but_for_cancelled():
            self.end(self._unanswered_text())
        else:
            times = self._settings.call
            self._loop.call_later(max(0.0, times.abandon_s - times.cancel_s), self._on_abandoned, exchange)

    def _on_abandoned(self, exchange: wire.Exchange) -> None:
        if exchange.is_open:
            self.end(self._unanswered_text())

    def _is_free_but_for_cancelled(self) -> bool:
        """Whether no request is open here whose caller still waits."""
        return all(not one.is_requester or one.owner.is_answered for one in self.connection.exchanges.values())

    def _unanswered_text(self) -> CartdeckError:
        return failure(Code.ABORTED, f"{self.key} did not answer a cancelled call and was ended")

    # -- events

    @property
    def is_blocked(self) -> bool:
        """The process does not read what is sent to it."""
        return self._channel is not None and self._channel.is_blocked

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def flush_soon(self) -> None:
        if self._channel is not None:
            self._channel.flush_soon()

    def _on_events(self, events: list[wire.Event]) -> None:
        now_s = self._clock.now_s
        if self.health is not None:
            self.health.heard_at_s = now_s
        handlers = self._handlers
        for event in events:
            # The most frequent kind goes without a look-up.
            if type(event) is wire.ChunkReceived:
                owner = event.exchange.owner
                if owner is not None and not owner.is_answered:
                    owner.heard_at_s = owner.advanced_at_s = now_s
                    owner.on_chunk(event.stream, event.payload)
            else:
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)

    def _listener(self, exchange: wire.Exchange) -> Any:
        """Who is told of an event: None when the request was answered already."""
        owner = exchange.owner
        if owner is None or owner.is_answered:
            return None
        owner.heard_at_s = self._clock.now_s
        return owner

    def _on_stream(self, event: wire.StreamStarted) -> None:
        if (listener := self._listener(event.exchange)) is not None:
            listener.advanced_at_s = self._clock.now_s
            listener.on_stream(event.stream, event.payload)

    def _on_stream_end(self, event: wire.StreamEnded) -> None:
        if (listener := self._listener(event.exchange)) is not None:
            listener.on_stream_end(event.stream)

    def _on_log(self, event: wire.Logged) -> None:
        if (listener := self._listener(event.exchange)) is not None:
            listener.note_progress(event, self._clock.now_s)
            listener.on_log(event)

    def _on_finished(self, event: wire.Finished) -> None:
        request: Request = event.exchange.owner
        self._close(request)
        request.finish(event.progress, event.provenance)
        self._request_ended()

    def _on_failed(self, event: wire.Failed) -> None:
        request: Request = event.exchange.owner
        self._close(request)
        request.fail(event.error)
        self._request_ended()

    def _on_damage(self, event: wire.ExchangeDamaged) -> None:
        exchange, owner = event.exchange, event.exchange.owner
        if owner is None:
            return
        if not exchange.is_requester:
            owner.on_caller_gone(event.error)
            return
        owner.fail(event.error)
        if exchange.is_open:  # CANCEL is on its way; the terminal is still to come
            self._await_terminal(owner, event.error)
        else:
            self._close(owner)
            self._request_ended()

    def _close(self, request: Request) -> None:
        if request.cancel_timer is not None:
            request.cancel_timer.cancel()
            request.cancel_timer = None
        if request is not self._probe:
            self.open_requests -= 1
            self.has_answered = True
            self.used_at_s = self._clock.now_s

    def _request_ended(self) -> None:
        if self._idle_waiters and not self.open_requests:
            self._wake_idle_waiters()
        if self.state is State.READY:
            self._watcher.request_ended(self)
            if self.is_closed_to_new and self._is_free_but_for_cancelled():
                self._end_if_unanswered()

    def _end_if_unanswered(self) -> None:
        """It is closed to new requests for a call that it did not answer; the last other one has ended now."""
        if any(one.is_requester and one.cancelled for one in self.connection.exchanges.values()):
            self.end(self._unanswered_text())

    def _wake_idle_waiters(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_peer_call(self, event: wire.RequestReceived) -> None:
        self._watcher.peer_called(self, event)

    def _on_arguments_end(self, event: wire.ArgumentsEnded) -> None:
        if event.exchange.owner is not None:
            event.exchange.owner.on_arguments_end()

    def _on_cancel(self, event: wire.CancelReceived) -> None:
        if event.exchange.owner is not None:
            event.exchange.owner.on_caller_gone(failure(Code.CANCELLED, event.reason))

    def _on_hello(self, event: wire.HelloReceived) -> None:
        if self._hello is not None and not self._hello.done():
            self._hello.set_result(event)

    def _on_heartbeat(self, event: wire.HeartbeatReceived) -> None:
        if self.health is not None:
            self.health.rss_bytes = event.rss_bytes

    def _on_connection_log(self, event: wire.ConnectionLogged) -> None:
        if self.process is not None:
            self.process.log.feed(f"{event.level}: {event.message}\n".encode())

    def _on_refused(self, event: wire.ConnectionRefused) -> None:
        """The process says why it leaves; the end of file follows."""
        if self._pipe_error is None:
            self._pipe_error = event.error

    # -- clocks

    def tick(self, now_s: float) -> None:
        """Look at all clocks; called every `tick_s` by the pool."""
        if self.state is not State.READY or self.health is None:
            return
        for exchange in tuple(self.connection.exchanges.values()):
            request = exchange.owner
            if exchange.is_requester and not request.is_answered and not exchange.cancelled:
                error = overdue(request, now_s, self._settings.call)
                if error is not None:
                    self.give_up(request, error)
                    request.fail(error)
        if self.health.is_hung(now_s):
            details = last_details(self.process, lines=self._lines)
            self._fall(failure(Code.HUNG, f"{self.key} {self.health.hung_text}", details=details))

    # -- the end

    def end(self, reason: CartdeckError | None = None, *, is_urgent: bool = False) -> "asyncio.Task[None]":
        """End the process by the ladder. Open requests fail with `reason`, ABORTED unless given. Safe to call twice:
        the task is the same. The task is never cancelled with the caller."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._walk_down(is_urgent=is_urgent))
            self._leave(reason or failure(Code.ABORTED, f"{self.key} was ended while the call ran"), asked=True)
        return self._ending

    @property
    def ending(self) -> "asyncio.Task[None] | None":
        """The walk down the ladder, once it has begun: done when the process and all it started are gone."""
        return self._ending

    def _fall(self, error: CartdeckError) -> None:
        """The process is at fault: its callers learn it now, and it is ended without grace."""
        if self._ending is None:
            if self.process is not None:
                self.process.kill()
            self._ending = self._loop.create_task(self._walk_down(is_urgent=True))
            self._leave(error, asked=False)

    def _leave(self, error: CartdeckError, *, asked: bool) -> None:
        self.state = State.ENDING
        for waiter in (self._hello, self._probe.answer if self._probe else None):
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # seen: nobody may be waiting for it
        exchanges = tuple(self.connection.exchanges.values())
        for exchange in exchanges:
            owner = exchange.owner
            if exchange.is_requester and owner is not self._probe:
                if owner.cancel_timer is not None:
                    owner.cancel_timer.cancel()
                    owner.cancel_timer = None
                owner.fail(error)
        for exchange in exchanges:  # after their parents, so that a peer's failure is not taken for the cause
            if not exchange.is_requester and exchange.owner is not None:
                exchange.owner.on_caller_gone(error)
        for exchange in exchanges:
            self.connection.close_exchange(exchange, error)
        self.open_requests = 0
        self._wake_idle_waiters()
        self._watcher.ended(self, None if asked else error)

    async def _walk_down(self, *, is_urgent: bool) -> None:
        process, channel = self.process, self._channel
        if channel is not None:
            channel.close_writing()
        if process is not None:
            await process.stop(self._settings.stop, is_urgent=is_urgent)
        if channel is not None:
            channel.close()
        self.state = State.ENDED

    def _on_lost(self, error: CartdeckError | None) -> None:
        """The pipe is at its end. The exit code follows within a moment, or the process is made to leave."""
        if self._ending is not None:
            return
        if error is not None:
            self._pipe_error = error
        elif not self.connection.is_between_frames and self._pipe_error is None:
            self._pipe_error = failure(Code.PROTOCOL_VIOLATION, "its output ends inside a frame")
        if self.process is None or not self.process.is_running:
            self._die()
        elif error is not None and error.code is not Code.CARTRIDGE_DIED:
            self._fall(named(error, str(self.key), self.process, lines=self._lines))
        else:
            self._loop.call_later(self._settings.stop.silence_s, self._die)

    def _on_exit(self) -> None:
        """The process is gone. What it wrote before is still in the pipe: read that first."""
        if self._ending is None:
            self._drain(self._loop.time() + _MOST_DRAIN_S, -1)

    def _drain(self, until_s: float, seen_bytes: int) -> None:
        channel = self._channel
        if self._ending is not None or channel is None:
            return
        if not channel.is_reading or channel.read_bytes == seen_bytes or self._loop.time() >= until_s:
            self._die()
        else:
            self._loop.call_later(self._settings.stop.silence_s, self._drain, until_s, channel.read_bytes)

    def _die(self) -> None:
        if self._ending is None and self.process is not None:
            was_ready = self.state is not State.STARTING
            self._fall(
                obituary(
                    str(self.key), self.process, was_ready=was_ready, pipe_error=self._pipe_error, lines=self._lines
                )
            )
