"""Owns what stands before the session of one key: the requests that wait there, and the record of its failures.

It does not know when a session starts or ends; the pool does.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from cartdeck.discovery import Cartridge
from cartdeck.pool.policy import Failures, SessionKey
from cartdeck.pool.priority import Priority
from cartdeck.request import Request
from cartdeck.sessions.session import Session
from cartdeck.status import SessionStatus


@dataclass(slots=True, eq=False)
class Door:
    """`session` is None while none runs."""

    key: SessionKey
    cartridge: Cartridge
    session: Session | None = None
    starting: "asyncio.Task[None] | None" = None
    waiting: deque[Request] = field(default_factory=deque[Request])
    failures: Failures | None = None
    is_placeless: bool = False
    """It has waiting requests and no session, and all places for instances are taken."""

    @property
    def holds_instance(self) -> bool:
        return self.cartridge.manifest.holds_instances

    @property
    def has_room(self) -> bool:
        """Its session takes one more request."""
        session = self.session
        return (
            session is not None and session.is_open_to_new and session.open_requests < self.cartridge.manifest.capacity
        )

    @property
    def is_forgettable(self) -> bool:
        return self.session is None and not self.waiting and self.failures is None

    @property
    def turn(self) -> tuple[int, int]:
        """Of the first that waits here: see `Request.turn`."""
        return self.waiting[0].turn

    @property
    def priority(self) -> Priority:
        """The highest class of those that wait here; there is one."""
        return self.waiting[0].priority

    def add(self, request: Request) -> None:
        """It waits here: behind those of its class, before those of lower ones."""
        place = len(self.waiting)
        while place and self.waiting[place - 1].priority < request.priority:
            place -= 1
        self.waiting.insert(place, request)
        request.is_waiting = True

    def status(self) -> SessionStatus:
        session, failures = self.session, self.failures
        if session is None:
            state = "waiting" if self.waiting else "failed"
        else:
            state = "suspect" if session.health is not None and session.health.is_suspect else session.state.value
        return SessionStatus(
            key=self.key,
            state=state,
            pid=None if session is None or session.process is None else session.process.pid,
            open_requests=0 if session is None else session.open_requests,
            waiting_requests=len(self.waiting),
            rss_bytes=None if session is None or session.health is None else session.health.rss_bytes,
            reserved_bytes=0 if session is None else session.reserved_bytes,
            priority=None if session is None else session.priority,
            failures=0 if failures is None else failures.count,
            is_quarantined=failures is not None and failures.is_quarantined,
            first_error=None if failures is None else failures.first,
        )

    def phases(self) -> dict[str, int]:
        """How many requests are here, by phase: see `SessionStats.requests`."""
        found: Counter[str] = Counter()
        if self.waiting:
            found["queued" if self.starting is None else "starting"] = len(self.waiting)
        session = self.session
        if session is not None and session.open_requests:  # else there is at most the identity probe
            found.update("cancelling" if one.is_answered else one.phase or "running" for one in session.requests())
        return dict(found)

    def notice(self) -> None:
        """Tell those who wait what they wait for."""
        for ahead, request in enumerate(self.waiting):
            if self.starting is not None:
                message, phase = f"starting {self.key.cartridge}", "starting"
            else:
                place = f"{ahead} before it" if ahead else "next in line"
                message, phase = f"waiting for {self.key.cartridge}, {place}", "queued"
            if request.noticed != message:
                request.noticed = message
                request.on_notice(message, phase)
