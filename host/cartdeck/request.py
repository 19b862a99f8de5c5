"""Owns one request to a session, as the engine sees it: where it goes, what it hears, its clocks, its chain.

It does not know who asked: `Call` (a caller of the engine) and `Forward` (a cartridge that calls a peer) say what is
done with what is heard. There is no task in here: the session calls these methods from its reader.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from cartdeck.calls.arguments import Prepared
from cartdeck.peers.link import Link
from cartdeck.pool.policy import SessionKey
from cartdeck.pool.priority import Priority
from cartdeck.router import Route
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import Exchange, InStream, Logged

_NOWHERE = SessionKey("")
_LAST = 1 << 62


class Request(ABC):
    """A request on its way through the engine. The pool places it, a session opens it, and it ends once."""

    __slots__ = (
        "_phase", "_progress", "_work", "advanced_at_s", "arrival", "cancel_timer", "exchange", "heard_at_s",
        "is_answered", "is_second_try", "is_waiting", "key", "noticed", "parent", "peers", "prepared", "priority",
        "request_id",
        "route", "session",
    )  # fmt: skip

    is_visit = False
    """It only wants the session to be ready; nothing is opened there."""

    def __init__(self, parent: "Request | None" = None) -> None:
        self.parent = parent
        """The request whose cartridge makes this peer call."""
        self.peers: set[Request] = set()
        """The peer calls that are made for this request and have not ended."""
        self.priority: Priority = Priority.STANDARD if parent is None else parent.priority
        """Whom it may make end, and who may make its session end: of the one that it was made for, if there is one."""
        self.route: Route | None = None
        self.prepared: Prepared | None = None
        self.key = _NOWHERE
        self.arrival = 0
        """Its place in the order of arrival at the pool."""
        self.session: Link | None = None
        self.exchange: Exchange | None = None
        self.request_id = 0
        """Its id on the wire of its session, 0 before it was opened there."""
        self.cancel_timer: asyncio.TimerHandle | None = None
        self.is_waiting = False
        """It stands in the pool's queue."""
        self.is_second_try = False
        """Its load ran out of memory once, and it was sent again: see `second_try`."""
        self.noticed = ""
        """What it was last told while it waited."""
        self.is_answered = False
        """Whoever asked knows the end. The exchange may be open still, after a cancel that is not answered."""
        self.heard_at_s = 0.0
        """When a frame last came, on the engine's clock."""
        self.advanced_at_s = 0.0
        """When data, work, progress or a phase last moved on."""
        self._progress = -1.0
        self._work = -1.0
        self._phase: str | None = None

    # -- where it stands

    @property
    def turn(self) -> tuple[int, int]:
        """Its turn among those that wait for a place or for memory, the least first: by class, then by arrival. One
        that has not waited yet comes last of its class."""
        return -self.priority, self.arrival if self.is_waiting else _LAST

    def chain(self) -> "list[Request]":
        """This request and those that it was made for, the innermost first."""
        found: list[Request] = []
        one: Request | None = self
        while one is not None:
            found.append(one)
            one = one.parent
        return found

    @property
    def title(self) -> str:
        """What it is, for messages: "generate-text on gguf"."""
        return f"{self.route.definition.alias} on {self.key.cartridge}" if self.route is not None else "a call"

    @property
    def phase(self) -> str:
        """The phase that the cartridge last named; "" before it named one."""
        return self._phase or ""

    def waits_for(self) -> frozenset[SessionKey]:
        """The sessions at whose doors this request's peer calls wait, however deep."""
        found: set[SessionKey] = set()
        for peer in self.peers:
            if peer.is_waiting:
                found.add(peer.key)
            found |= peer.waits_for()
        return frozenset(found)

    def last_heard_s(self, now_s: float) -> float:
        """`heard_at_s`, where a peer call's frames count for all that wait for it, and one in a queue hears now."""
        if self.is_waiting:
            return now_s
        return max((self.heard_at_s, *(peer.last_heard_s(now_s) for peer in self.peers)))

    def last_advanced_s(self, now_s: float) -> float:
        """`advanced_at_s`, the same way."""
        if self.is_waiting:
            return now_s
        return max((self.advanced_at_s, *(peer.last_advanced_s(now_s) for peer in self.peers)))

    def can_be_sent_again(self) -> bool:
        """Whether its arguments are all there still."""
        return False

    def send_again(self) -> None:
        """It failed, nobody was told, and it is going to be opened once more."""
        self.is_second_try = self.is_waiting = True
        self.session, self.request_id = None, 0
        self._progress = self._work = -1.0
        self._phase = None

    # -- the end, once

    def finish(self, progress: float, provenance: dict[str, Any]) -> None:
        """Answer with success, unless it was answered before."""
        if not self.is_answered:
            self._settle()
            self.on_finished(progress, provenance)

    def fail(self, error: CartdeckError) -> None:
        """Answer with an error, unless it was answered before."""
        if not self.is_answered:
            self._settle()
            self.on_failed(error)

    def _settle(self) -> None:
        self.is_answered = True
        self.is_waiting = False
        if self.parent is not None:
            self.parent.peers.discard(self)

    # -- what the session tells; all on the loop's thread, and not after the answer

    @abstractmethod
    def on_opened(self) -> None:
        """The request is on its way to the process: send the argument streams."""

    @abstractmethod
    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        """An output began. With `payload` it is the whole output."""

    @abstractmethod
    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        """A piece of an output; `stream.take()` once it was used up."""

    @abstractmethod
    def on_stream_end(self, stream: InStream) -> None:
        """No more pieces of that output."""

    @abstractmethod
    def on_log(self, event: Logged) -> None:
        """A line or a progress of the cartridge."""

    @abstractmethod
    def on_notice(self, message: str, phase: str) -> None:
        """The engine's own word on a request that is not open yet: it waits, or a process is starting for it."""

    @abstractmethod
    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        """The end, successful. Called once, or `on_failed` is."""

    @abstractmethod
    def on_failed(self, error: CartdeckError) -> None:
        """The end, with an error."""

    @abstractmethod
    def reader_since_s(self, now_s: float) -> float | None:
        """Since when the reader has taken nothing, while what waits for it uses up the whole window; else None."""

    # -- advancing

    def note_progress(self, event: Logged, now_s: float) -> None:
        """Whether a progress is an advance: more progress, more work, or a new phase (law 5). A keepalive is none."""
        if event.phase is not None and event.phase != self._phase:
            self._phase = event.phase
            self._work = -1.0 if event.work is None else event.work
            self.advanced_at_s = now_s
        elif event.work is not None and event.work > self._work:
            self._work = event.work
            self.advanced_at_s = now_s
        if event.progress is not None and event.progress > self._progress:
            self._progress = event.progress
            self.advanced_at_s = now_s
