"""Owns the doors of an engine: requests come to the door of their session, wait there or go in, and leave.

It does not know caps or callers. The decisions are `policy`'s; this carries them out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from cartdeck.calls.second_try import SecondTry
from cartdeck.peers.memory_ask import MemoryAsk
from cartdeck.pool import policy
from cartdeck.pool.door import Door
from cartdeck.pool.footprint import counts_memory
from cartdeck.pool.history import History
from cartdeck.pool.memory import Memory
from cartdeck.pool.policy import Action, SessionKey
from cartdeck.pool.priority import Priority
from cartdeck.pool.seating import Seating
from cartdeck.pool.unloading import unload
from cartdeck.request import Request
from cartdeck.sessions.clock import Clock
from cartdeck.sessions.life import Tapping
from cartdeck.sessions.session import Session, SessionWatcher, State
from cartdeck.settings import Settings
from cartdeck.stats import EngineStats
from cartdeck.status import SessionStatus
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import RequestReceived

_LOGGER: Final = logging.getLogger("cartdeck.pool.pool")


class Pool:
    """All sessions of an engine. Everything runs on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        on_peer_call: Callable[[Session, RequestReceived], None],
        tap: Tapping,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.doors: dict[SessionKey, Door] = {}
        self._placeless: list[Door] = []
        self._ending: set[Session] = set()
        self._asks: list[MemoryAsk] = []
        self._seating = Seating(
            self.doors,
            self._ending,
            self._asks,
            limit=settings.instances.limit,
            budget_bytes=settings.memory.budget_bytes,
        )
        self._memory = Memory(
            settings.memory, self._seating, self._asks, end_session=self._evict, on_change=self._settle
        )
        self._second_try = SecondTry(make_room=self._empty_beside, enter=self.enter)
        self._watcher = SessionWatcher(
            self._on_request_ended, on_peer_call, self._on_session_ended, tap, self._second_try.take
        )
        self._history = History(self._loop.time())
        self._arrivals = 0
        self._is_closed = False

    @property
    def sessions(self) -> list[Session]:
        return [door.session for door in self.doors.values() if door.session is not None]

    # -- requests come and go

    def enter(self, request: Request) -> None:
        """Open the request at its session now, or let it wait for one.

        Raises what refuses it at the door: QUEUE_FULL, QUARANTINED, the first error of a session that failed just
        now, PEER_DEADLOCK.
        """
        route = request.route
        assert route is not None
        door = self.doors.get(request.key)
        if door is None:
            door = self.doors[request.key] = Door(request.key, route.cartridge)
        if door.has_room and (request.parent is not None or not (door.waiting or self._must_yield(door, request))):
            _let_in(door, request)
            return
        try:
            self._wait(door, request)
        finally:
            self._forget(door)

    def _wait(self, door: Door, request: Request) -> None:
        if self._is_closed:
            raise failure(Code.ABORTED, "the engine is closed")
        if door.session is None:
            refused = policy.refusal(door.key, door.failures, now_s=self._loop.time())
            if refused is not None:
                raise refused
        if len(door.waiting) >= self._settings.instances.queue:
            message = f"{len(door.waiting)} calls wait for {door.key} already"
            raise failure(Code.QUEUE_FULL, message, details={"retry_after_s": 1.0})
        if request.parent is not None and self._seating.would_deadlock(door, request.chain()):
            titles = [one.title for one in reversed(request.chain())]
            message = f"{request.title} would wait for what its own chain of calls holds: {' → '.join(titles)}"
            raise failure(Code.PEER_DEADLOCK, message, details={"chain": titles})
        self._arrivals += 1
        request.arrival = self._arrivals
        door.add(request)
        self._advance(door)
        if request.is_waiting:
            door.notice()

    def leave(self, request: Request) -> None:
        """The request does not want to wait any more. A start that nobody waits for is broken off."""
        if not request.is_waiting or self._second_try.leave(request):
            return
        door = self.doors.get(request.key)
        if door is None:
            return
        request.is_waiting = False
        door.waiting.remove(request)
        if not door.waiting:
            self._take_from_line(door)
            if door.starting is not None and door.session is not None:
                door.session.end(failure(Code.CANCELLED, "nobody waits for it any more"), is_urgent=True)
        self._settle()
        self._forget(door)

    def _settle(self) -> None:
        """Something changed while requests wait: whoever can go on goes on.

        Those with a session first, else one that has just started would be evicted before it was used.
        """
        if self._is_closed:
            return
        self._advance_all()
        if self._asks and self._memory.settle():
            self._advance_all()  # those who yielded to it
        while self._placeless:
            door = min(self._placeless, key=lambda one: one.turn)
            self._find_place(door)
            if door.session is None and door.is_placeless:
                break  # the first in line waits on, and nobody overtakes it
            self._take_from_line(door)
            self._advance_all()

    def _advance_all(self) -> None:
        for door in tuple(self.doors.values()):
            if door.waiting:
                self._advance(door)
                door.notice()

    def _advance(self, door: Door) -> None:
        """Let in what waits while there is room; find a place for a session where there is none."""
        if door.session is None:
            if door.waiting and not door.is_placeless:
                self._find_place(door)
            return
        while door.has_room:
            request = next((one for one in door.waiting if not self._must_yield(door, one)), None)
            if request is None:
                return
            door.waiting.remove(request)
            request.is_waiting = False
            try:
                _let_in(door, request)
            except CartdeckError as error:
                request.fail(error)

    def _must_yield(self, door: Door, request: Request) -> bool:
        """Who came first goes first, in a class: a session that is always busy would keep others from its place for
        ever. Peer calls do not yield; a chain that holds a place must get on to free it."""
        if not (self._placeless or self._asks) or not door.holds_instance or request.parent is not None:
            return False
        first = [one.turn for one in self._placeless] + [ask.turn for ask in self._asks[:1]]
        return min(first) < request.turn

    # -- sessions start and end

    def _find_place(self, door: Door) -> None:
        """Start a session, now or when a place is free; an idle session may have to make room."""
        if self._is_closed:
            return
        placement = self._seating.place(door.priority) if door.holds_instance else policy.START
        if placement.action is Action.REFUSE:
            self._take_from_line(door)
            limit = self._settings.instances.limit
            self._fail_all(door, policy.no_place(door.key, priority=door.priority, limit=limit))
            return
        if placement.action is Action.START:
            self._history.on_start(door.key, self.doors)
            session = door.session = Session(door.key, door.cartridge, self._settings, self._clock, self._watcher)
            session.priority = door.priority
            door.starting = self._loop.create_task(self._start(door, session))
            door.notice()
            return
        if not door.is_placeless:
            door.is_placeless = True
            self._placeless.append(door)
        if placement.victim is not None:
            self._evict(placement.victim)

    def _take_from_line(self, door: Door) -> None:
        if door.is_placeless:
            self._placeless.remove(door)
            door.is_placeless = False

    def _evict(self, key: SessionKey) -> None:
        door = self.doors.get(key)
        if door is not None and door.session is not None:
            door.session.end()

    async def _start(self, door: Door, session: Session) -> None:
        try:
            await session.start()
        finally:
            if door.session in (session, None):
                door.starting = None
        self._settle()

    def _on_request_ended(self, session: Session) -> None:
        door = self.doors[session.key]
        door.failures = None
        if door.waiting or self._placeless or (self._asks and not session.open_requests and counts_memory(session)):
            self._settle()

    def _on_session_ended(self, session: Session, error: CartdeckError | None) -> None:
        self._ending.add(session)
        self._history.on_end(session, error)
        assert session.ending is not None
        session.ending.add_done_callback(lambda _task: self._on_gone(session))
        door = self.doors.get(session.key)
        if door is None or door.session is not session:
            return
        door.session = door.starting = None
        if error is not None and not session.has_answered:
            now_s = self._loop.time()
            door.failures = policy.after_failure(door.failures, error, now_s=now_s, limits=self._settings.restart)
            self._fail_all(door, error)
        self._advance(door)
        self._forget(door)

    def _on_gone(self, session: Session) -> None:
        """The process and all that it started are gone: its place is free."""
        self._ending.discard(session)
        self._history.on_gone(session)
        self._second_try.on_gone(session)
        self._settle()

    def _fail_all(self, door: Door, error: CartdeckError) -> None:
        waiting, door.waiting = door.waiting, deque()
        for request in waiting:
            request.fail(error)

    def _forget(self, door: Door) -> None:
        if door.is_forgettable and self.doors.get(door.key) is door:
            del self.doors[door.key]

    # -- memory

    def ask_memory(self, session: Session, event: RequestReceived, parent: Request | None) -> None:
        """A cartridge asks for memory: see `Memory.ask`."""
        self._arrivals += 1
        self._memory.ask(session, event, parent, arrival=self._arrivals)

    def _empty_beside(self, session: Session, priority: Priority) -> list[Session]:
        """End all idle instances that give way to that class, but this session; those that are on their way out."""
        for holder in self._seating.holders(session):
            if holder.is_idle and priority.may_evict(holder.priority):
                self._evict(holder.key)
        return [one for one in self._ending if counts_memory(one)]

    # -- from outside

    def tick(self, now_s: float) -> None:
        """Look at every session's clocks, and unload what nobody used for long."""
        has_reopened = False
        for session in self.sessions:
            try:
                has_reopened |= self._look_at(session, now_s)
            except Exception:  # the clocks of the others are looked at all the same
                _LOGGER.exception("%s: its clocks could not be looked at", session.key)
        if self._asks:
            has_reopened = True  # what is held may be less now
        else:
            self._memory.trim()
        if has_reopened:  # its heartbeats came back: nothing else tells those who wait for it
            self._settle()

    def _look_at(self, session: Session, now_s: float) -> bool:
        """Whether it takes new calls again."""
        was_open = session.is_open_to_new
        session.tick(now_s)
        idle_s = self._settings.instances.idle_s
        is_unused = session.state is State.READY and not session.open_requests
        if idle_s and session.holds_instance and is_unused and self._loop.time() - session.used_at_s > idle_s:
            session.end()
        return session.is_open_to_new and not was_open

    def classify(self, key: SessionKey, priority: Priority) -> bool:
        """Say which class the session of a key is of from now on; whether there is one."""
        door = self.doors.get(key)
        if door is None or door.session is None:
            return False
        door.session.priority = priority
        self._settle()  # those that wait may find it in their way no more
        return True

    async def unload(self, keys: list[SessionKey]) -> int:
        """End the sessions of these keys: see `unload`. How many there were."""
        found = [door for key in keys if (door := self.doors.get(key)) is not None and door.session is not None]
        try:
            await unload(found)
        finally:
            self._settle()  # who gave up waiting leaves sessions that work, and maybe calls at their doors
        return len(found)

    def statuses(self) -> list[SessionStatus]:
        return [door.status() for door in self.doors.values()]

    def stats(self) -> EngineStats:
        memory, now_s = self._memory.stats(), self._loop.time()
        return self._history.stats(self.doors, self._ending, memory=memory, now_s=now_s)

    def reset(self, cartridge: str | None) -> int:
        """Forget the failures of a cartridge's sessions, of all without a name; how many there were."""
        doors = [door for door in self.doors.values() if cartridge in (None, door.key.cartridge)]
        failed = [door for door in doors if door.failures is not None]
        for door in failed:
            door.failures = None
            self._forget(door)
        return len(failed)

    async def close(self) -> None:
        """End everything: callers get ABORTED, and no process is left when this returns."""
        self._is_closed = True
        error = failure(Code.ABORTED, "the engine was closed while the call ran")
        starting = [door.starting for door in self.doors.values() if door.starting is not None]
        self._second_try.fail_all(error)
        for door in tuple(self.doors.values()):
            self._fail_all(door, error)
            door.is_placeless = False
        self._placeless.clear()
        for session in self.sessions:
            session.end(error)
        ending = [session.ending for session in self._ending if session.ending is not None]
        if starting or ending:
            await asyncio.wait([*starting, *ending])


def _let_in(door: Door, request: Request) -> None:
    """`door` has room."""
    assert door.session is not None
    door.session.priority = max(door.session.priority, request.priority)
    if request.is_visit:
        request.finish(1.0, {})
    else:
        door.session.open(request)
