"""Owns the decisions about memory: what fits under the budget, whom to evict for it, what a refusal says.

It does not know processes, clocks or tasks: who holds how much goes in, a decision comes out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from cartdeck.pool.policy import SessionKey
from cartdeck.pool.priority import Priority
from cartdeck_protocol.errors import CartdeckError, Code, failure

_MOST_HOLDERS: Final = 8
_LONGEST_INSTANCE: Final = 200


@dataclass(slots=True, frozen=True)
class Holder:
    """A session that holds memory, as the policy sees it."""

    key: SessionKey
    used_bytes: int
    """What it was granted, or what was measured where that is more."""
    is_idle: bool
    """It is ready and nothing is open there: it may be evicted."""
    is_ending: bool
    """Its process is on its way out: what it holds is free soon."""
    used_at_s: float
    """When its last call ended, on the loop's clock."""
    priority: Priority = Priority.STANDARD

    @property
    def state(self) -> str:
        return "ending" if self.is_ending else "idle" if self.is_idle else "busy"


class Room(Enum):
    FREE = "free"
    """There is enough."""
    SOON = "soon"
    """There is when those that are on their way out are gone."""
    EVICT = "evict"
    """There is when the victims are gone too."""
    BUSY = "busy"
    """There is not before busy ones end."""
    KEPT = "kept"
    """There is not, whoever becomes idle: the rest is held by classes that do not give way to the one that asks."""


@dataclass(slots=True, frozen=True)
class RoomPlan:
    room: Room
    victims: tuple[SessionKey, ...] = ()


def make_room(
    others: Iterable[Holder], *, need_bytes: int, budget_bytes: int, priority: Priority = Priority.STANDARD
) -> RoomPlan:
    """Where `need_bytes` of a request of that class come from, beside what the others hold.

    Idle ones are evicted: the lowest class first, in a class those unused for longest, and only when that is enough;
    never a busy or loading one, nor one that does not give way to that class.
    """
    held = list(others)
    missing = sum(one.used_bytes for one in held) + need_bytes - budget_bytes
    if missing <= 0:
        return RoomPlan(Room.FREE)
    missing -= sum(one.used_bytes for one in held if one.is_ending)
    if missing <= 0:
        return RoomPlan(Room.SOON)
    yielding = [one for one in held if priority.may_evict(one.priority)]
    victims = _first_to_go(yielding, missing)
    if sum(one.used_bytes for one in victims) < missing:
        can_come = sum(one.used_bytes for one in yielding if not one.is_ending)
        return RoomPlan(Room.BUSY if can_come >= missing else Room.KEPT)
    return RoomPlan(Room.EVICT, tuple(one.key for one in victims))


def over_budget(holders: Iterable[Holder], *, budget_bytes: int) -> tuple[SessionKey, ...]:
    """Whom to evict when more is held than the budget allows, since some took more than they asked for.

    Of the highest class the one used last is spared: a single instance that is larger than the budget would be loaded
    anew for each call.
    """
    held = list(holders)
    excess = sum(one.used_bytes for one in held if not one.is_ending) - budget_bytes
    if excess <= 0:
        return ()
    live = [one for one in held if not one.is_ending and one.priority is not Priority.HELD]
    if live and all(one.is_idle for one in live):
        live.remove(max(live, key=_order))
    return tuple(one.key for one in _first_to_go(live, excess))


def _order(holder: Holder) -> tuple[Priority, float]:
    """The first to go is the least."""
    return holder.priority, holder.used_at_s


def _first_to_go(held: Collection[Holder], missing: int) -> list[Holder]:
    """Idle ones that hold `missing` bytes, or all of them; none that could be left out."""
    chosen: list[Holder] = []
    for one in sorted((one for one in held if one.is_idle and not one.is_ending), key=_order):
        if missing > 0:
            chosen.append(one)
            missing -= one.used_bytes
    for one in reversed(chosen.copy()):  # of the highest class the one used last is the first to be spared
        if one.used_bytes <= -missing:
            chosen.remove(one)
            missing += one.used_bytes
    return chosen


def free_bytes(holders: Iterable[Holder], *, budget_bytes: int) -> int:
    return max(0, budget_bytes - sum(one.used_bytes for one in holders))


def insufficient(
    reason: str, others: Collection[Holder], *, need_bytes: int, budget_bytes: int, retry_after_s: float | None = None
) -> CartdeckError:
    """INSUFFICIENT_MEMORY with `need`, `free`, `budget` (bytes) and `holders` in its details."""
    free = free_bytes(others, budget_bytes=budget_bytes)
    largest = sorted(others, key=lambda one: -one.used_bytes)[:_MOST_HOLDERS]
    details: dict[str, Any] = {
        "need": need_bytes,
        "free": free,
        "budget": budget_bytes,
        "holders": [
            {
                "cartridge": one.key.cartridge,
                "instance": one.key.instance[:_LONGEST_INSTANCE],
                "bytes": one.used_bytes,
                "state": one.state,
                "class": one.priority.word,
            }
            for one in largest
        ],
    }
    if retry_after_s is not None:
        details["retry_after_s"] = retry_after_s
    message = f"{shown(need_bytes)} of memory are needed and {shown(free)} of {shown(budget_bytes)} are free: {reason}"
    return failure(Code.INSUFFICIENT_MEMORY, message, phase="load", details=details)


def waiting_text(others: Collection[Holder], *, need_bytes: int, budget_bytes: int) -> str:
    """What one that waits for memory is told: how much is free, and who holds the rest."""
    free = free_bytes(others, budget_bytes=budget_bytes)
    largest = sorted(others, key=lambda one: -one.used_bytes)[:_MOST_HOLDERS]
    held = ", ".join(f"{one.key.cartridge} ({shown(one.used_bytes)}, {one.state})" for one in largest)
    return f"waiting for memory: {shown(need_bytes)} needed, {shown(free)} free; held by {held}"


def shown(size_bytes: int) -> str:
    """Bytes in a unit that people read: "700 MB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.{1 if size_bytes < 10 * factor else 0}f} {unit}"
    return f"{size_bytes} bytes"
