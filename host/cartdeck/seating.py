"""Owns the pool's state as `policy` wants to see it: who has one of the places for instances, and who waits for whom.

It does not know what is decided with it.
"""

from collections.abc import Collection, Mapping

from cartdeck import policy
from cartdeck.door import Door
from cartdeck.policy import Action, Lease, Placement, Seat, SessionKey
from cartdeck.request import Request
from cartdeck.session import Session, State

_NOBODY: frozenset[int] = frozenset()


class Seating:
    """A view of the doors, and of the sessions whose processes are on their way out."""

    def __init__(self, doors: Mapping[SessionKey, Door], ending: Collection[Session], *, limit: int) -> None:
        self._doors = doors
        self._ending = ending
        self._limit = limit

    def place(self) -> Placement:
        """Where one more instance goes."""
        return policy.place(self._seats(_NOBODY), limit=self._limit)

    def would_deadlock(self, door: Door, chain: Collection[Request]) -> bool:
        """Whether a request of this chain of peer calls, that must wait at the door, would wait for its own end."""
        own = frozenset(id(one) for one in chain)
        session = door.session
        if session is not None:
            is_full = session.open_requests >= door.cartridge.manifest.capacity
            return is_full and self._is_stuck(door.key, own)
        return door.holds_instance and policy.place(self._seats(own), limit=self._limit).action is Action.DEADLOCK

    def _seats(self, own: frozenset[int]) -> list[Seat]:
        seats = [
            Seat(
                door.key,
                is_loading=session.state is State.STARTING,
                is_ending=session.is_closed_to_new and not session.open_requests,
                open_requests=session.open_requests,
                used_at_s=session.used_at_s,
                is_stuck=bool(own) and self._is_stuck(door.key, own),
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

    def _is_stuck(self, key: SessionKey, own: frozenset[int]) -> bool:
        return policy.is_stuck(key, lambda at: self._leases(at, own))

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
