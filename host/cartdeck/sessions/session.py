"""Owns one running cartridge: the requests open there, their limits, and its health.

It does not know which requests come to it, nor what follows its end: the pool decides both.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cartdeck.discovery import Cartridge
from cartdeck.pool.policy import SessionKey
from cartdeck.pool.priority import Priority
from cartdeck.request import Request
from cartdeck.sessions.clock import Clock
from cartdeck.sessions.dispatch import Dispatch, Hearing
from cartdeck.sessions.handshake import IdentityProbe
from cartdeck.sessions.health import Health
from cartdeck.sessions.launch import memory_excess
from cartdeck.sessions.life import Life, Tapping
from cartdeck.sessions.obituary import last_details, mistake_of_ours
from cartdeck.sessions.overdue import overdue
from cartdeck.sessions.process import Process
from cartdeck.settings import Settings
from cartdeck.stats import Traffic, untraced
from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure

_LOGGER = logging.getLogger("cartdeck.sessions.session")
_MOST_STRAYS_LOGGED: Final = 10
"""Of one session; the others are counted."""


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"


@dataclass(slots=True)
class SessionWatcher:
    """Whom a session tells. All are called on the loop's thread."""

    request_ended: Callable[["Session"], None]
    """A request's terminal came: there is room for another."""
    peer_called: Callable[["Session", wire.RequestReceived], None]
    """The cartridge calls a peer."""
    ended: Callable[["Session", CartdeckError | None], None]
    """It takes no more requests and its callers know; the error is None when it was asked to end."""
    tap: Tapping
    """Asked at the start, for one who wants to see its frames."""
    out_of_memory: Callable[["Session", wire.Failed], bool]
    """A request failed with OUT_OF_MEMORY: whether it is tried again, so that it is not told."""


class Session:
    """One process of a cartridge, with at most one instance."""

    def __init__(
        self, key: SessionKey, cartridge: Cartridge, settings: Settings, clock: Clock, watcher: SessionWatcher
    ) -> None:
        self.key = key
        self.cartridge = cartridge
        self.state = State.STARTING
        self.has_answered = False
        """It has ended a request, with a result or an error, or begun to answer one: it works."""
        self.has_only_failed = False
        """None of the requests that it ended had a result: there may be no model for its key."""
        self.unloaders = 0
        """Those who wait for its end: until they give up, it answers what is open and takes nothing more."""
        self._opened: dict[Request, None] = {}
        """Those that were sent and whose end was not heard of yet, in order. The connection forgets an exchange as soon
        as it has read its terminal, which may be before that was told."""
        self.used_at_s = 0.0
        """When its last request ended, on the loop's clock: the engine's is too coarse to tell who was used last."""
        self.health: Health | None = None
        self.last_error: CartdeckError | None = None
        """Of its requests."""
        self.reserved_bytes = 0
        """Of memory: what it was granted last."""
        self.priority = Priority.OPPORTUNISTIC
        """The highest class of those that it was started for or that went in since, unless somebody said another."""
        self._settings = settings
        self._clock = clock
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._unanswered: set[Request] = set()
        """Those that were cancelled, and for which the engine answered in its stead: while there is one, it takes
        nothing new."""
        self._silent: set[Request] = set()
        """Those that gave no sign for too long and have not answered their CANCEL yet: the same, for as long. Who tries
        again at once would otherwise wait for the same silence."""
        self._is_leaving = False
        """It has said that it leaves."""
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._logged_strays = 0
        limits = wire.Limits(
            max_chunk=settings.wire.max_chunk_bytes,
            initial_credit=settings.wire.initial_credit,
            max_item=settings.wire.max_item_bytes,
        )
        self.connection = wire.Connection(wire.Role.HOST, limits=limits, software="cartdeck")
        self._life = Life(
            str(key), cartridge, settings,
            connection=self.connection, on_events=self._on_events, on_over=self._on_over, tap=watcher.tap,
        )  # fmt: skip  # what it is, then whom it tells
        self._dispatch = Dispatch(
            clock,
            Hearing(
                on_hello=self._life.handshake.on_hello,
                on_heartbeat=self._on_heartbeat,
                on_connection_log=self._on_connection_log,
                on_stray=self._on_stray,
                on_refused=self._on_refused,
                on_peer_call=lambda event: watcher.peer_called(self, event),
                on_terminal=self._on_terminal,
                on_error=self._on_error,
                on_out_of_memory=lambda event: watcher.out_of_memory(self, event),
                on_settled=self._on_settled,
                on_damaged=lambda event: self._await_terminal(event.exchange, event.error),
            ),
        )

    # -- life

    async def start(self) -> None:
        """Start the process and shake hands. What goes wrong is told to the watcher, as a death is."""
        try:
            await self._life.start()
        except CartdeckError as error:
            self._life.fail_start(error)
            return
        except Exception as error:
            # A mistake of ours, which a pause must follow like any other failure: else it is made again at once.
            _LOGGER.exception("%s: its start went wrong", self.key)
            self._life.fail_start(failure(Code.START_FAILED, f"{type(error).__name__}: {error}", phase="starting"))
            return
        except BaseException:
            self.end(is_urgent=True)
            raise
        assert self._life.process is not None
        self.state = State.READY
        self.used_at_s = self._loop.time()
        self.health = Health(self._settings.health, self._life.process, self._clock.now_s)

    def end(self, reason: CartdeckError | None = None, *, is_urgent: bool = False) -> "asyncio.Task[None]":
        """End the process by the ladder. Open requests fail with `reason`, ABORTED unless given. The task is done
        when the process and all it started are gone; it is the same for a second call."""
        error = reason or failure(Code.ABORTED, f"{self.key} was ended while the call ran")
        return self._life.end(error, is_urgent=is_urgent)

    @property
    def ending(self) -> "asyncio.Task[None] | None":
        return self._life.ending

    @property
    def process(self) -> Process | None:
        return self._life.process

    def _on_over(self, error: CartdeckError, was_asked: bool) -> None:
        was_ready, self.state = self.state is State.READY, State.ENDING
        opened, self._opened = self._opened, {}
        for request in opened:
            # An answer that had begun shows a process that works: its death is no failure to start.
            self.has_answered |= request.exchange is not None and request.exchange.total_in > 0 and was_ready
            _stop_timer(request)
            with self._others_go_on():
                request.fail(error)
        exchanges = tuple(self.connection.exchanges.values())
        for exchange in exchanges:  # after their parents, so that a peer's failure is not taken for the cause
            if not exchange.is_requester and exchange.owner is not None:
                with self._others_go_on():
                    exchange.owner.on_caller_gone(error)
        for exchange in exchanges:
            self.connection.close_exchange(exchange, error)
        self._wake_idle_waiters()
        self._watcher.ended(self, None if was_asked else error)

    @contextlib.contextmanager
    def _others_go_on(self) -> Generator[None]:
        """A mistake in telling one request of the end keeps no other from learning it."""
        try:
            yield
        except Exception:
            _LOGGER.exception("%s: a request could not be told of its end", self.key)

    # -- requests

    @property
    def open_requests(self) -> int:
        return len(self._opened)

    @property
    def is_open_to_new(self) -> bool:
        health = self.health
        return health is not None and not (self.is_closed_to_new or health.is_suspect) and self.state is State.READY

    @property
    def is_closed_to_new(self) -> bool:
        """It is on its way out, unless a late answer shows that it works after all."""
        return self._is_leaving or self.unloaders > 0 or bool(self._unanswered) or bool(self._silent)

    @property
    def holds_instance(self) -> bool:
        return self.cartridge.manifest.holds_instances

    @property
    def is_blocked(self) -> bool:
        return self._life.is_blocked

    def requests(self) -> list[Request]:
        """The requests that are open here."""
        return [one.owner for one in self.connection.exchanges.values() if one.is_requester]

    def traffic(self) -> Traffic:
        """What went over the pipes of this process so far."""
        connection, (read_bytes, written_bytes) = self.connection, self._life.moved_bytes
        return Traffic(
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            received_frames=connection.received_frames,
            opened_requests=connection.opened_requests,
            stragglers=connection.stragglers,
            strays=connection.strays,
            bad_progress=connection.bad_progress,
        )

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
        request.request_id = exchange.id
        request.session = self
        request.heard_at_s = request.advanced_at_s = self._clock.now_s
        self._opened[request] = None
        request.on_opened()
        # A lone caller's frame leaves now and saves a turn of the loop; a crowd's leave together at its end.
        if is_alone:
            self._life.flush()
        else:
            self._life.flush_soon()

    def flush_soon(self) -> None:
        self._life.flush_soon()

    def give_up(self, exchange: wire.Exchange, error: CartdeckError) -> None:
        """Send CANCEL. `error` is the answer unless a terminal comes in time, or the request was answered."""
        if exchange.is_open and not exchange.cancelled:
            self.connection.cancel(exchange, error.message)
            self._await_terminal(exchange, error)
            self._life.flush()

    def _await_terminal(self, exchange: wire.Exchange, error: CartdeckError) -> None:
        request: Request = exchange.owner
        if request.cancel_timer is None:
            cancel_s = self._settings.call.cancel_s
            request.cancel_timer = self._loop.call_later(cancel_s, self._on_unanswered, exchange, error)

    def _on_unanswered(self, exchange: wire.Exchange, error: CartdeckError) -> None:
        """No terminal after CANCEL: answer for the process, send nothing new there, and end it when it is free."""
        request: Request = exchange.owner
        request.cancel_timer = None
        if not exchange.is_open or self.state is not State.READY:
            return
        self._silent.discard(request)
        self._unanswered.add(request)
        request.fail(error)
        times = self._settings.call
        self._loop.call_later(max(0.0, times.abandon_s - times.cancel_s), self._on_abandoned, exchange)
        self._end_if_stuck()

    def _on_abandoned(self, exchange: wire.Exchange) -> None:
        if exchange.is_open:
            self._end_stuck()

    def _end_if_stuck(self) -> None:
        """End it when nothing is open but what it did not answer. One whose answer lies further back in this batch of
        events is open still."""
        if all(request.is_answered for request in self._opened):
            self._end_stuck()

    def _end_stuck(self) -> None:
        message = f"{self.key} did not answer a cancelled call, so it was ended, and the calls that were open there too"
        lines = self._settings.log.error_lines
        self.end(failure(Code.HUNG, message, details=last_details(self.process, lines=lines)))

    async def wait_idle(self) -> None:
        """Wait until no request is open here."""
        while self.open_requests:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _wake_idle_waiters(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- events

    def _on_events(self, events: list[wire.Event]) -> None:
        if self.health is not None:
            self.health.heard_at_s = self._clock.now_s
        try:
            self._dispatch(events)
        except Exception as error:
            # A mistake of ours: what it left undone is not known, so nobody here is to wait for it.
            self._life.fall(mistake_of_ours(f"{self.key}: its frames", error))
            raise

    def _on_terminal(self, request: Request, has_result: bool) -> None:
        _stop_timer(request)
        self._unanswered.discard(request)
        self._silent.discard(request)
        request.exchange = None  # the exchange knows the request: without this each call is work for the collector
        self._opened.pop(request, None)  # it may be gone: the damaged end of a request is told twice
        if type(request) is not IdentityProbe:
            self.has_only_failed = not has_result and (self.has_only_failed or not self.has_answered)
            self.has_answered = True
            self.used_at_s = self._loop.time()

    def _on_error(self, error: CartdeckError) -> None:
        self.last_error = untraced(error)

    def _on_settled(self) -> None:
        if self._idle_waiters and not self.open_requests:
            self._wake_idle_waiters()
        if self.state is State.READY and self._unanswered:
            self._end_if_stuck()  # which may be the end of this session, and of its door
        if self.state is State.READY:
            self._watcher.request_ended(self)

    def _on_refused(self, event: wire.ConnectionRefused) -> None:
        """It is about to leave, and says why: what came now would die with it."""
        self._is_leaving = True
        self._life.on_last_words(event.error)
        self._loop.call_later(self._settings.stop.close_s, self.end, event.error)

    def _on_stray(self, event: wire.StrayReceived) -> None:
        # not by the connection's count, which is that of the whole batch already
        if self._logged_strays < _MOST_STRAYS_LOGGED:
            self._logged_strays += 1
            kind = wire.Kind(event.kind).name
            _LOGGER.warning("%s: %s for request %d, which was never opened", self.key, kind, event.request_id)

    def _on_heartbeat(self, event: wire.HeartbeatReceived) -> None:
        if self.health is not None:
            self.health.rss_bytes = event.rss_bytes

    def _on_connection_log(self, event: wire.ConnectionLogged) -> None:
        if self._life.process is not None:
            self._life.process.log.feed(f"{event.level}: {event.message}\n".encode())

    def tick(self, now_s: float) -> None:
        """Look at all clocks: one look for all requests every `tick_s`, instead of a timer for each call."""
        health = self.health
        if self.state is not State.READY or health is None:
            return
        excess = memory_excess(self.cartridge, self._settings, self._life.process)
        if excess is not None:
            self._life.fall(excess)
            return
        for exchange in tuple(self.connection.exchanges.values()):
            request = exchange.owner
            if exchange.is_requester and not request.is_answered and not exchange.cancelled:
                error = overdue(request, now_s, self._settings.call)
                if error is not None:
                    self.last_error = untraced(error)
                    if error.code is Code.TIMED_OUT:
                        self._silent.add(request)
                    with self._others_go_on():
                        self.give_up(exchange, error)
                        request.fail(error)
        if health.is_hung(now_s):
            self._life.hang(health.hung_text)


def _stop_timer(request: Request) -> None:
    if request.cancel_timer is not None:
        request.cancel_timer.cancel()
        request.cancel_timer = None
