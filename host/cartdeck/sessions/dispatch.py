"""Owns the way of a connection's events to those whose exchanges they belong to.

It does not know what they do with them. There are two kinds of owners: a `Request`, which the host made, and the
calling side of a peer call, which the cartridge made.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cartdeck.request import Request
from cartdeck.sessions.clock import Clock
from cartdeck.sessions.obituary import mistake_of_ours
from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure


@dataclass(slots=True)
class Hearing:
    """What the session itself hears."""

    on_hello: Callable[[wire.HelloReceived], None]
    on_heartbeat: Callable[[wire.HeartbeatReceived], None]
    on_connection_log: Callable[[wire.ConnectionLogged], None]
    on_refused: Callable[[wire.ConnectionRefused], None]
    on_stray: Callable[[wire.StrayReceived], None]
    on_peer_call: Callable[[wire.RequestReceived], None]
    on_terminal: Callable[[Request, bool], None]
    """A request's exchange is closed, and whether with a result; called before the request is told, so that it no
    longer counts."""
    on_error: Callable[[CartdeckError], None]
    """A request failed with this."""
    on_out_of_memory: Callable[[wire.Failed], bool]
    """A request's memory did not suffice: whether it is tried again, so that it is not told."""
    on_settled: Callable[[], None]
    """A request was told of its end: there is room for another."""
    on_damaged: Callable[[wire.ExchangeDamaged], None]
    """A request broke a law of the wire, and a CANCEL is on its way; its terminal still follows."""


class Dispatch:
    """Called with each batch of events, in the order in which they came.

    When one cannot be dealt with, whose exchange it belongs to gets INTERNAL, the others of the batch are dealt with
    all the same, and the first such exception is raised behind them.
    """

    def __init__(self, clock: Clock, hearing: Hearing) -> None:
        self._clock = clock
        self._hearing = hearing
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.StreamStarted: self._on_stream,
            wire.StreamEnded: self._on_stream_end,
            wire.Logged: self._on_log,
            wire.Finished: self._on_finished,
            wire.Failed: self._on_failed,
            wire.ExchangeDamaged: self._on_damage,
            wire.ArgumentsEnded: self._on_arguments_end,
            wire.CancelReceived: self._on_cancel,
            wire.RequestReceived: hearing.on_peer_call,
            wire.HelloReceived: hearing.on_hello,
            wire.HeartbeatReceived: hearing.on_heartbeat,
            wire.ConnectionLogged: hearing.on_connection_log,
            wire.ConnectionRefused: hearing.on_refused,
            wire.StrayReceived: hearing.on_stray,
        }

    def __call__(self, events: list[wire.Event]) -> None:
        now_s = self._clock.now_s
        handlers = self._handlers
        mistake: Exception | None = None
        for event in events:
            try:
                if type(event) is wire.ChunkReceived:  # the most frequent kind goes without a look-up
                    owner = event.exchange.owner
                    if owner is not None and not owner.is_answered:
                        owner.heard_at_s = owner.advanced_at_s = now_s
                        owner.on_chunk(event.stream, event.payload)
                else:
                    handler = handlers.get(type(event))
                    if handler is not None:  # damage of the connection itself is the channel's news
                        handler(event)
            except Exception as error:
                mistake = mistake or error
                _answer_for(event, error)
        if mistake is not None:
            raise mistake

    def _listener(self, exchange: wire.Exchange) -> Any:
        """Who is told of an event: None when nobody owns the exchange, or its owner was answered already."""
        owner = exchange.owner
        if owner is None or owner.is_answered:
            return None
        owner.heard_at_s = self._clock.now_s
        return owner

    def _on_stream(self, event: wire.StreamStarted) -> None:
        listener = self._listener(event.exchange)
        if listener is not None:
            listener.advanced_at_s = self._clock.now_s
            listener.on_stream(event.stream, event.payload)

    def _on_stream_end(self, event: wire.StreamEnded) -> None:
        listener = self._listener(event.exchange)
        if listener is not None:
            listener.on_stream_end(event.stream)

    def _on_log(self, event: wire.Logged) -> None:
        listener = self._listener(event.exchange)
        if listener is not None:
            listener.note_progress(event, self._clock.now_s)
            listener.on_log(event)

    def _on_finished(self, event: wire.Finished) -> None:
        request: Request = event.exchange.owner
        self._hearing.on_terminal(request, True)
        try:
            request.finish(event.progress, event.provenance)
        except Exception as mistake:
            _answer_end(request, mistake)
            raise
        self._hearing.on_settled()

    def _on_failed(self, event: wire.Failed) -> None:
        request: Request = event.exchange.owner
        self._hearing.on_terminal(request, False)
        self._hearing.on_error(event.error)
        if event.error.code is Code.OUT_OF_MEMORY and self._hearing.on_out_of_memory(event):
            self._hearing.on_settled()
            return
        try:
            request.fail(event.error)
        except Exception as mistake:
            _answer_end(request, mistake)
            raise
        self._hearing.on_settled()

    def _on_damage(self, event: wire.ExchangeDamaged) -> None:
        exchange, owner = event.exchange, event.exchange.owner
        if owner is None:
            return
        if not exchange.is_requester:
            owner.on_caller_gone(event.error)
            return
        self._hearing.on_error(event.error)
        if exchange.is_open:
            owner.fail(event.error)
            self._hearing.on_damaged(event)
        else:
            self._hearing.on_terminal(owner, False)
            owner.fail(event.error)
            self._hearing.on_settled()

    def _on_arguments_end(self, event: wire.ArgumentsEnded) -> None:
        if event.exchange.owner is not None:
            event.exchange.owner.on_arguments_end()

    def _on_cancel(self, event: wire.CancelReceived) -> None:
        if event.exchange.owner is not None:
            event.exchange.owner.on_caller_gone(failure(Code.CANCELLED, event.reason))


def _answer_for(event: Any, mistake: Exception) -> None:
    """The owner of an event that could not be dealt with must not end as if it had been."""
    exchange: wire.Exchange | None = getattr(event, "exchange", None)
    if exchange is None or exchange.owner is None:
        return
    error = mistake_of_ours(f"a {type(event).__name__} of the call", mistake)
    with contextlib.suppress(Exception):  # the first one is raised behind the batch
        if exchange.is_requester:
            exchange.owner.fail(error)
        else:
            exchange.owner.on_caller_gone(error)


def _answer_end(request: Request, mistake: Exception) -> None:
    """A request that counts as answered and could not take its end gets the reason instead."""
    with contextlib.suppress(Exception):
        request.on_failed(mistake_of_ours("the end of the call", mistake))
