"""Owns the decisions about sessions: whom to start, refuse, evict, let wait, and when a failed one may start again.

It does not know processes, clocks or tasks: state and event go in, a decision comes out, and the pool carries it out.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from cartdeck.pool.priority import Priority
from cartdeck.settings import RestartSettings
from cartdeck_protocol.errors import CartdeckError, Code, failure


class SessionKey(NamedTuple):
    """What makes two calls share a process: the cartridge, and the instance arguments in canonical form.

    `instance` is "" for a cartridge that holds no instance. A tuple, since it is hashed twice for every call.
    """

    cartridge: str
    instance: str = ""

    def __str__(self) -> str:
        return f"{self.cartridge}[{self.instance}]" if self.instance else self.cartridge


# -- when a session that failed may start again


@dataclass(slots=True, frozen=True)
class Failures:
    """The failures of one session key since its last answer. A new record is made for each change."""

    count: int
    retry_at_s: float
    """On the loop's clock."""
    first: CartdeckError
    is_quarantined: bool


def after_failure(before: Failures | None, error: CartdeckError, *, now_s: float, limits: RestartSettings) -> Failures:
    """A process of this key failed before its first answer.

    The pauses are first_s, twice that, and so on up to longest_s; the last failure allowed ends in quarantine.
    """
    if before is None:
        before = Failures(0, now_s, error, is_quarantined=False)
    # the exponent is bounded so that a large count cannot overflow the float
    pause_s = min(limits.first_s * 2.0 ** min(before.count, 32), limits.longest_s)
    count = before.count + 1
    return replace(before, count=count, retry_at_s=now_s + pause_s, is_quarantined=count >= limits.quarantine_after)


def refusal(key: SessionKey, failures: Failures | None, *, now_s: float) -> CartdeckError | None:
    """Why no process of this key may start now; None when one may.

    During a pause the error is the first failure's own, so that every caller reads the cause; `details` holds
    `retry_after_s`.
    """
    if failures is None:
        return None
    first = failures.first
    details = {**first.details, "failures": failures.count, "first_error": first.code_name}
    if failures.is_quarantined:
        return failure(
            Code.QUARANTINED,
            f"{key} failed {failures.count} times in a row before its first answer and is not started again. "
            f"The first error was {first.code_name}: {first.message}",
            details=details,
        )
    wait_s = failures.retry_at_s - now_s
    if wait_s <= 0:
        return None
    return failure(
        first.code,
        f"{key} failed {failures.count} times before its first answer; the next try is in {wait_s:.0f} s. "
        f"The first error was: {first.message}",
        phase=first.phase,
        details={**details, "retry_after_s": round(wait_s, 3)},
    )


# -- where an instance goes when the places are taken


class Action(Enum):
    START = "start"
    EVICT = "evict"
    WAIT = "wait"
    DEADLOCK = "deadlock"
    REFUSE = "refuse"
    """All places are held by classes that do not give way to the one that asks."""


@dataclass(slots=True)
class Seat:
    """One of the limited places for instances, as the policy sees it."""

    key: SessionKey
    is_loading: bool
    """Starting, or before its first answer: never evicted."""
    is_ending: bool
    """Its process is on its way out: the place is free soon."""
    open_requests: int
    """Those that wait at its door do not count: they are there because others came before them."""
    used_at_s: float
    """When its last call ended, on the loop's clock."""
    is_stuck: bool
    """It is busy until the call that wants a place ends: see `is_stuck`."""
    priority: Priority = Priority.STANDARD
    has_only_failed: bool = False
    """It has served nobody: one whose model is not there takes no place from one whose model is."""


@dataclass(slots=True, frozen=True)
class Placement:
    action: Action
    victim: SessionKey | None = None


START: Final = Placement(Action.START)
_WAIT: Final = Placement(Action.WAIT)
_DEADLOCK: Final = Placement(Action.DEADLOCK)
_REFUSE: Final = Placement(Action.REFUSE)
_RETRY_S: Final = 5.0


def no_place(key: SessionKey, *, priority: Priority, limit: int) -> CartdeckError:
    """QUEUE_FULL for one that would wait for a place for ever: see REFUSE."""
    message = (
        f"There is no place for {key}: all {limit} (setting instances.limit) are held by instances of a higher class, "
        f"which give way to no {priority.word} call"
    )
    return failure(Code.QUEUE_FULL, message, details={"class": priority.word, "retry_after_s": _RETRY_S})


def place(seats: Iterable[Seat], *, limit: int, priority: Priority = Priority.STANDARD) -> Placement:
    """Where one more instance goes, for a request of that class: a free place, the place of an idle one (of the lowest
    class, and in it one whose calls all failed, else the one unused for longest), or the queue.

    When every place is busy until the asking call itself ends, waiting would never end: DEADLOCK. REFUSE where all are
    held by classes that do not give way to it.
    """
    taken = list(seats)
    if len(taken) < limit:
        return START
    if any(seat.is_ending for seat in taken):
        return _WAIT
    yielding = [seat for seat in taken if priority.may_evict(seat.priority)]
    idle = [seat for seat in yielding if not seat.is_loading and not seat.open_requests]
    if idle:
        return Placement(Action.EVICT, min(idle, key=_first_to_go).key)
    if not yielding:
        return _REFUSE
    return _DEADLOCK if all(seat.is_stuck for seat in yielding) else _WAIT


def _first_to_go(seat: Seat) -> tuple[Priority, bool, float]:
    return seat.priority, not seat.has_only_failed, seat.used_at_s


@dataclass(slots=True, frozen=True)
class Lease:
    """One call open at a session, as far as waiting for it matters."""

    is_own: bool
    """It belongs to the asking call's own chain, so it ends only after the asking call."""
    waits_for: frozenset[SessionKey]
    """The sessions at whose doors its peer calls wait; empty when it can go on by itself."""


@dataclass(slots=True, frozen=True)
class Shortage:
    """A wait for memory, which goes on when enough of what others hold was given back."""

    held_bytes: Mapping[SessionKey, int]
    """What each of the others holds."""
    spare_bytes: int
    """So much of it may stay."""


Standing: TypeAlias = Collection[Lease] | Shortage


def is_stuck(key: SessionKey, standing: Callable[[SessionKey], Standing]) -> bool:
    """Whether no call open at `key` can end before the asking call does.

    `standing(key)` says what is open there, or what is waited for. A call cannot end when it is of the asking chain,
    or when a peer call of its own waits where all is stuck. A wait for memory is stuck when those that are stuck hold
    too much. A ring of sessions that wait for one another is stuck; a session with no open call is not.
    """
    found: dict[SessionKey, Standing] = {}
    unseen = [key]
    while unseen:
        at = unseen.pop()
        if at not in found:
            one = found[at] = standing(at)
            unseen += one.held_bytes if isinstance(one, Shortage) else {to for lease in one for to in lease.waits_for}
    # All of them are, but for those that can go on, and those that can when these did.
    stuck = set(found)
    while free := [at for at in stuck if not _is_held(found[at], stuck)]:
        stuck.difference_update(free)
    return key in stuck


def _is_held(one: Standing, stuck: Collection[SessionKey]) -> bool:
    if isinstance(one, Shortage):
        return sum(size for at, size in one.held_bytes.items() if at in stuck) > one.spare_bytes
    return bool(one) and all(lease.is_own or any(to in stuck for to in lease.waits_for) for lease in one)
