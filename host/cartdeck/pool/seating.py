"""Owns the pool's state as the policies want to see it: who has one of the places for instances, who holds memory, and
who waits for whom.

It does not know what is decided with it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from cartdeck.peers.memory_ask import MemoryAsk
from cartdeck.pool import policy
from cartdeck.pool.door import Door
from cartdeck.pool.footprint import counts_memory, used_bytes
from cartdeck.pool.memory_policy import Holder
from cartdeck.pool.policy import Action, Lease, Placement, Seat, SessionKey, Shortage, Standing
from cartdeck.pool.priority import Priority
from cartdeck.request import Request
from cartdeck.sessions.session import Session, State

_NOBODY: frozenset[int] = frozenset()


class Seating:
    """A view of the doors, of the sessions whose processes are on their way out, and of those that wait for memory."""

    def __init__(
        self,
        doors: Mapping[SessionKey, Door],
        ending: Collection[Session],
        asks: Sequence[MemoryAsk],
        *,
        limit: int,
        budget_bytes: int,
    ) -> None:
        self._doors = doors
        self._ending = ending
        self._asks = asks
        self._limit = limit
        self._budget_bytes = budget_bytes

    def place(self, priority: Priority) -> Placement:
        """Where one more instance goes, for a request of that class."""
        return policy.place(self._seats(_NOBODY), limit=self._limit, priority=priority)

    def would_deadlock(self, door: Door, chain: Sequence[Request]) -> bool:
        """Whether a request of this chain of peer calls, that must wait at the door, would wait for its own end."""
        own = frozenset(id(one) for one in chain)
        session = door.session
        if session is not None:
            is_full = session.open_requests >= door.cartridge.manifest.capacity
            return is_full and self._is_stuck(door.key, own)
        placement = policy.place(self._seats(own), limit=self._limit, priority=chain[0].priority)
        return door.holds_instance and placement.action is Action.DEADLOCK

    def _seats(self, own: frozenset[int]) -> list[Seat]:
        seats = [
            Seat(
                door.key,
                is_loading=session.state is State.STARTING,
                is_ending=session.is_closed_to_new and not session.open_requests,
                open_requests=session.open_requests,
                used_at_s=session.used_at_s,
                is_stuck=bool(own) and self._is_stuck(door.key, own),
                priority=session.priority,
                has_only_failed=session.has_only_failed,
            )
            for door in self._doors.values()
            if door.holds_instance and (session := door.session) is not None
        ]
        seats += [
            Seat(one.key, is_loading=False, is_ending=True, open_requests=0, used_at_s=0.0, is_stuck=False)
            for one in self._ending
            if one.holds_instance
        ]
        return seats

    # -- memory

    def holders(self, asker: Session | None = None) -> list[Holder]:
        """Who holds memory that counts, without `asker`."""
        live = [session for session in self._live() if session is not asker and counts_memory(session)]
        ending = [session for session in self._ending if counts_memory(session)]
        return [self._holder(one, is_ending=False) for one in live] + [
            self._holder(one, is_ending=True) for one in ending
        ]

    def _live(self) -> Iterator[Session]:
        return (door.session for door in self._doors.values() if door.session is not None)

    def _holder(self, session: Session, *, is_ending: bool) -> Holder:
        is_idle = (
            session.state is State.READY
            and not session.open_requests
            and not any(ask.asker is session for ask in self._asks)
        )
        return Holder(session.key, used_bytes(session), is_idle, is_ending, session.used_at_s, session.priority)

    def memory_is_stuck(self, ask: MemoryAsk, *, by_own_chain: bool) -> bool:
        """Whether this wait for memory would never end: for its own chain of calls alone, or for any."""
        own = frozenset(id(one) for one in ask.chain())

        def standing(at: SessionKey) -> Standing:
            is_other_ask = at != ask.key and any(at == one.key for one in self._asks)
            return [] if by_own_chain and is_other_ask else self._standing(at, own)

        return policy.is_stuck(ask.key, standing)

    def _shortage(self, ask: MemoryAsk) -> Shortage:
        held = {one.key: one.used_bytes for one in self.holders(ask.asker) if not one.is_ending}
        return Shortage(held, self._budget_bytes - max(ask.size_bytes, used_bytes(ask.asker)))

    # -- who waits for whom

    def _is_stuck(self, key: SessionKey, own: frozenset[int]) -> bool:
        return policy.is_stuck(key, lambda at: self._standing(at, own))

    def _standing(self, at: SessionKey, own: frozenset[int]) -> Standing:
        for ask in self._asks:
            if ask.key == at:
                return self._shortage(ask)
        return self._leases(at, own)

    def _leases(self, at: SessionKey, own: frozenset[int]) -> list[Lease]:
        door = self._doors.get(at)
        if door is None:
            return []
        if door.is_placeless:  # it goes on as soon as any seat is free
            return [
                Lease(is_own=False, waits_for=frozenset({seat.key}))
                for seat in self._doors.values()
                if seat.holds_instance and seat.session is not None
            ]
        if door.session is None or door.session.state is not State.READY:
            return []
        return [Lease(is_own=id(one) in own, waits_for=one.waits_for()) for one in door.session.requests()]
