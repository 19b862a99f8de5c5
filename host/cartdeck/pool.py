"""Owns the doors: for each session key its session, the requests that wait there, and the record of its failures.

It does not know caps or callers. The decisions are `policy`'s; this carries them out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cartdeck import policy
from cartdeck.clock import Clock
from cartdeck.discovery import Cartridge
from cartdeck.policy import Action, Failures, Lease, SessionKey
from cartdeck.request import Request
from cartdeck.session import Session, SessionWatcher, State
from cartdeck.settings import Settings
from cartdeck.status import SessionStatus
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import RequestReceived


@dataclass(slots=True)
class Door:
    """What stands before the session of one key."""

    key: SessionKey
    cartridge: Cartridge
    session: Session | None = None
    starting: "asyncio.Task[None] | None" = None
    waiting: deque[Request] = field(default_factory=deque[Request])
    failures: Failures | None = None
    is_placeless: bool = False
    """It has waiting requests, no session, and all places for instances are taken."""

    @property
    def holds_instance(self) -> bool:
        return self.cartridge.manifest.holds_instances

    @property
    def is_idle(self) -> bool:
        return self.session is None and not self.waiting and self.failures is None


class Pool:
    """All sessions of an engine. Everything runs on the loop's thread."""

    def __init__(
        self, settings: Settings, clock: Clock, *, on_peer_call: Callable[[Session, RequestReceived], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watcher = SessionWatcher(self._on_request_ended, on_peer_call, self._on_session_ended)
        self.doors: dict[SessionKey, Door] = {}
        self._placeless: deque[Door] = deque()
        self._ending: set[Session] = set()
        self._arrivals = 0
        self._is_closed = False

    @property
    def sessions(self) -> list[Session]:
        return [door.session for door in self.doors.values() if door.session is not None]

    # -- requests come and go

    def enter(self, request: Request) -> None:
        """Open the request at its session now, or let it wait for one. A refusal is the request's failure, raised
        here: QUEUE_FULL, QUARANTINED, the first error of a failing session, PEER_DEADLOCK."""
        route = request.route
        assert route is not None
        door = self.doors.get(request.key)
        if door is None:
            door = self.doors[request.key] = Door(request.key, route.cartridge)
        session = door.session
        if (
            session is not None
            and session.is_open_to_new
            and session.open_requests < door.cartridge.manifest.capacity
            and (request.parent is not None or not (door.waiting or self._placeless))
        ):
            _let_in(session, request)
        else:
            self._wait(door, request)

    def _wait(self, door: Door, request: Request) -> None:
        if self._is_closed:
            raise failure(Code.ABORTED, "the engine is closed")
        if door.session is None:
            refused = policy.refusal(door.key, door.failures, now_s=self._loop.time())
            if refused is not None:
                raise refused
        if len(door.waiting) >= self._settings.instances.queue:
            raise failure(
                Code.QUEUE_FULL,
                f"{len(door.waiting)} calls wait for {door.key} already",
                details={"retry_after_s": 1.0},
            )
        if request.parent is not None:
            self._refuse_deadlock(door, request)
        self._arrivals += 1
        request.arrival = self._arrivals
        request.is_waiting = True
        door.waiting.append(request)
        self._advance(door)
        if request.is_waiting:
            self._notice(door)

    def leave(self, request: Request) -> None:
        """The request does not want to wait any more. A start that nobody waits for is broken off."""
        door = self.doors.get(request.key)
        if not request.is_waiting or door is None:
            return
        request.is_waiting = False
        door.waiting.remove(request)
        if not door.waiting:
            if door.is_placeless:
                self._placeless.remove(door)
                door.is_placeless = False
            if door.starting is not None and door.session is not None:
                door.session.end(failure(Code.CANCELLED, "nobody waits for it any more"), is_urgent=True)
            self._forget_if_idle(door)
        else:
            self._notice(door)

    def _refuse_deadlock(self, door: Door, request: Request) -> None:
        """A peer call never waits for what its own chain holds: waiting would never end."""
        own = {id(one) for one in request.chain()}
        session, stuck = door.session, False
        if session is not None and session.open_requests >= door.cartridge.manifest.capacity:
            stuck = self._is_stuck(door.key, own)
        elif session is None and door.holds_instance:
            stuck = policy.place(self._seats(own), limit=self._settings.instances.limit).action is Action.DEADLOCK
        if stuck:
            names = " → ".join(one.title for one in reversed(request.chain()))
            raise failure(
                Code.PEER_DEADLOCK,
                f"{request.title} would wait for what its own chain of calls holds: {names}",
                details={"chain": [one.title for one in reversed(request.chain())]},
            )

    def _is_stuck(self, key: SessionKey, own: set[int]) -> bool:
        def leases(at: SessionKey) -> list[Lease]:
            door = self.doors.get(at)
            if door is None:
                return []
            if door.is_placeless:  # it goes on as soon as any seat is free
                return [Lease(False, frozenset({seat.key})) for seat in self.sessions if seat.cartridge_holds_instance]
            if door.session is None or door.session.state is not State.READY:
                return []
            return [Lease(id(one) in own, one.waits_for()) for one in door.session.requests()]

        return policy.is_stuck(key, leases)

    # -- sessions start and end

    def _advance(self, door: Door) -> None:
        """Open what waits at the door while there is room; start a session where there is none."""
        session = door.session
        if session is None:
            if door.waiting and not door.is_placeless:
                self._find_place(door)
            return
        capacity = door.cartridge.manifest.capacity
        while session.is_open_to_new and session.open_requests < capacity:
            request = next((one for one in door.waiting if not self._must_yield(one)), None)
            if request is None:
                break
            door.waiting.remove(request)
            request.is_waiting = False
            try:
                _let_in(session, request)
            except CartdeckError as error:
                request.fail(error)

    def _must_yield(self, request: Request) -> bool:
        """A session that stays busy for ever would keep others from its place: who came first goes first. Peer calls
        do not yield; a chain that holds a place must get on to free it."""
        return (
            bool(self._placeless) and request.parent is None and self._placeless[0].waiting[0].arrival < request.arrival
        )

    def _find_place(self, door: Door) -> None:
        if not door.holds_instance:
            self._start(door)
            return
        placement = policy.place(self._seats(set()), limit=self._settings.instances.limit)
        if placement.action is Action.START:
            self._start(door)
            return
        if not door.is_placeless:
            door.is_placeless = True
            self._placeless.append(door)
        if placement.victim is not None:
            victim = self.doors[placement.victim].session
            assert victim is not None
            victim.end()

    def _seats(self, own: set[int]) -> list[policy.Seat]:
        seats = [
            policy.Seat(
                door.key,
                is_loading=session.state is State.STARTING,
                is_ending=session.is_closed_to_new,
                open_requests=session.open_requests + len(door.waiting),
                used_at_s=session.used_at_s,
                is_stuck=bool(own) and self._is_stuck(door.key, own),
            )
            for door in self.doors.values()
            if door.holds_instance and (session := door.session) is not None
        ]
        seats += [
            policy.Seat(one.key, is_loading=False, is_ending=True, open_requests=0, used_at_s=0.0, is_stuck=False)
            for one in self._ending
            if one.cartridge_holds_instance
        ]
        return seats

    def _start(self, door: Door) -> None:
        session = Session(door.key, door.cartridge, self._settings, self._clock, self._watcher)
        door.session = session
        door.starting = self._loop.create_task(self._run_start(door, session))
        for request in door.waiting:
            request.on_notice(f"starting {door.key.cartridge}", "starting")

    async def _run_start(self, door: Door, session: Session) -> None:
        try:
            await session.start()
        except CartdeckError as error:
            session.fail_start(error)
        except BaseException:
            session.end(is_urgent=True)
            raise
        finally:
            door.starting = None
        if door.session is session:
            self._advance(door)
            self._notice(door)

    def _on_request_ended(self, session: Session) -> None:
        door = self.doors.get(session.key)
        if door is not None and door.session is session:
            door.failures = None
            if door.waiting:
                self._advance(door)
                self._notice(door)
        if self._placeless and session.cartridge_holds_instance and not session.open_requests:
            self._serve_placeless()

    def _on_session_ended(self, session: Session, error: CartdeckError | None) -> None:
        self._ending.add(session)
        assert session.ending is not None
        session.ending.add_done_callback(lambda _task: self._on_gone(session))
        door = self.doors.get(session.key)
        if door is None or door.session is not session:
            return
        door.session = None
        if error is not None and not session.has_answered:
            door.failures = policy.after_failure(
                door.failures, error, now_s=self._loop.time(), limits=self._settings.restart
            )
            self._fail_all(door, error)
        self._advance(door)
        self._forget_if_idle(door)

    def _on_gone(self, session: Session) -> None:
        """The process and all that it started are gone: its place is free."""
        self._ending.discard(session)
        self._serve_placeless()

    def _serve_placeless(self) -> None:
        for _ in range(len(self._placeless)):
            door = self._placeless[0]
            self._find_place(door)
            if door.session is None:
                return  # the first in line waits on, and nobody overtakes it
            self._placeless.popleft()
            door.is_placeless = False

    def _fail_all(self, door: Door, error: CartdeckError) -> None:
        waiting, door.waiting = door.waiting, deque()
        for request in waiting:
            request.fail(error)

    def _notice(self, door: Door) -> None:
        """Tell those who wait at which place they are."""
        if door.starting is not None:
            return
        for ahead, request in enumerate(door.waiting):
            others = f"{ahead} before it" if ahead else "next in line"
            request.on_notice(f"waiting for {door.key.cartridge}, {others}", "queued")

    def _forget_if_idle(self, door: Door) -> None:
        if door.is_idle and self.doors.get(door.key) is door:
            del self.doors[door.key]

    # -- from outside

    def tick(self, now_s: float) -> None:
        """Look at every session's clocks, and unload what nobody used for long."""
        idle_s = self._settings.instances.idle_s
        for session in self.sessions:
            session.tick(now_s)
            if (
                idle_s
                and session.cartridge_holds_instance
                and session.state is State.READY
                and not session.open_requests
                and now_s - session.used_at_s > idle_s
            ):
                session.end()

    async def unload(self, keys: list[SessionKey]) -> int:
        """End the sessions of these keys: each takes nothing new, finishes what is open, and is gone when this
        returns. How many there were."""
        found = [door.session for key in keys if (door := self.doors.get(key)) is not None and door.session is not None]
        for session in found:
            session.is_closed_to_new = True
        await asyncio.gather(*(self._unload(session) for session in found))
        return len(found)

    async def _unload(self, session: Session) -> None:
        starting = self.doors[session.key].starting
        if starting is not None:
            await asyncio.wait([starting])
        while session.open_requests and session.state is State.READY:
            await session.wait_idle()
        await asyncio.shield(session.end())

    def statuses(self) -> list[SessionStatus]:
        return [_status(door) for door in self.doors.values()]

    def reset(self, cartridge: str | None) -> int:
        """Forget the failures of a cartridge's sessions, of all without a name; how many there were."""
        found = [
            door
            for door in tuple(self.doors.values())
            if door.failures is not None and cartridge in (None, door.key.cartridge)
        ]
        for door in found:
            door.failures = None
            self._forget_if_idle(door)
        return len(found)

    async def close(self) -> None:
        """End everything: callers get ABORTED, and no process is left when this returns."""
        self._is_closed = True
        error = failure(Code.ABORTED, "the engine was closed while the call ran")
        for door in tuple(self.doors.values()):
            self._fail_all(door, error)
        for session in self.sessions:
            session.end(error)
        endings = [session.ending for session in self._ending if session.ending is not None]
        if endings:
            await asyncio.wait(endings)
        starts = [door.starting for door in self.doors.values() if door.starting is not None]
        if starts:
            await asyncio.wait(starts)


def _status(door: Door) -> SessionStatus:
    session, failures = door.session, door.failures
    if session is None:
        state = "waiting" if door.waiting else "failed"
    else:
        state = "suspect" if session.health is not None and session.health.is_suspect else session.state.value
    return SessionStatus(
        key=door.key,
        state=state,
        pid=None if session is None or session.process is None else session.process.pid,
        open_requests=0 if session is None else session.open_requests,
        waiting_requests=len(door.waiting),
        rss_bytes=None if session is None or session.health is None else session.health.rss_bytes,
        failures=0 if failures is None else failures.count,
        is_quarantined=failures is not None and failures.is_quarantined,
        first_error=None if failures is None else failures.first,
    )


def _let_in(session: Session, request: Request) -> None:
    if request.is_visit:
        request.finish(1.0, {})
    else:
        session.open(request)
