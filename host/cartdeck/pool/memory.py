"""Owns the account of memory: who was granted how much, who waits for some, and who makes room.

It does not know doors and places. The decisions are `memory_policy`'s; this carries them out.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable
from typing import Final

from cartdeck.peers.memory_ask import MemoryAsk
from cartdeck.pool import memory_policy
from cartdeck.pool.footprint import used_bytes
from cartdeck.pool.memory_policy import Room, RoomPlan
from cartdeck.pool.policy import SessionKey
from cartdeck.pool.seating import Seating
from cartdeck.request import Request
from cartdeck.sessions.session import Session
from cartdeck.settings import MemorySettings
from cartdeck.stats import MemoryStats
from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.wire import RequestReceived

_LOGGER = logging.getLogger("cartdeck.pool.memory")
_RETRY_S: Final = 1.0


class Memory:
    """Everything runs on the loop's thread. `asks` are those that wait, by class, in each in the order of arrival."""

    def __init__(
        self,
        settings: MemorySettings,
        seating: Seating,
        asks: list[MemoryAsk],
        *,
        end_session: Callable[[SessionKey], None],
        on_change: Callable[[], None],
    ) -> None:
        """`end_session(key)` ends an idle one; `on_change()` is called when one that waited does not wait any more,
        but for those that `settle` answers."""
        self._settings = settings
        self._seating = seating
        self._asks = asks
        self._end_session = end_session
        self._on_change = on_change
        self._asked = 0
        self._is_settling = False

    # -- cartridges ask

    def ask(self, session: Session, event: RequestReceived, parent: Request | None, *, arrival: int) -> None:
        """A cartridge asks for memory: answered now, or as soon as there is enough.

        `arrival` is its place among the requests that wait. Raises what is wrong with the question;
        INSUFFICIENT_MEMORY when it is more than the whole budget, or when others wait for what this one holds;
        PEER_DEADLOCK when its own chain of calls holds what is missing.
        """
        self._asked += 1
        ask = MemoryAsk(session, event, parent, number=self._asked, on_withdrawn=self._withdraw)
        ask.arrival = arrival
        if not ask.is_wanted:
            return  # it is told of its end next
        budget = self._settings.budget_bytes
        if ask.size_bytes > budget > 0:
            self._refuse(ask, "that is more than the budget of all instances together (setting memory.budget_bytes)")
        elif not budget or ask.size_bytes <= used_bytes(session):
            self._grant(ask)
            if self._asks:  # it may have given some back
                self._on_change()
        elif (plan := self._plan(ask, claimed=self._claimed(ask))).room is Room.FREE:
            self._grant(ask)
        elif plan.room is Room.KEPT and self._is_kept(ask):
            self._refuse_class(ask)
        else:
            self._wait(ask, plan)

    def _wait(self, ask: MemoryAsk, plan: RoomPlan) -> None:
        most = ask.asker.cartridge.manifest.capacity
        if sum(one.asker is ask.asker for one in self._asks) >= most:
            message = f"{ask.asker.key} waits for memory {most} times already, as often as it takes calls at once"
            ask.fail(failure(Code.QUEUE_FULL, message, details={"retry_after_s": _RETRY_S}))
            return
        ask.is_waiting = True
        insort(self._asks, ask, key=lambda one: one.turn)
        if plan.room in (Room.BUSY, Room.KEPT) and not self._can_end(ask):
            return
        self._evict(plan)
        ask.timer = asyncio.get_running_loop().call_later(self._settings.wait_s, self._expire, ask)
        self._notice(ask)

    def _can_end(self, ask: MemoryAsk) -> bool:
        """Whether the wait can come to an end by itself; else the ask is answered here."""
        if not self._seating.memory_is_stuck(ask, by_own_chain=False):
            return True
        is_by_own_chain = self._seating.memory_is_stuck(ask, by_own_chain=True)
        self._asks.remove(ask)
        if is_by_own_chain:
            titles = [one.title for one in reversed(ask.chain())]
            message = f"{ask.title} would wait for memory that its own chain of calls holds: {' → '.join(titles)}"
            ask.fail(failure(Code.PEER_DEADLOCK, message, details={"chain": titles}))
        else:
            self._refuse(ask, "others that wait for memory hold it, and wait for what this one holds", _RETRY_S)
        return False

    def _expire(self, ask: MemoryAsk) -> None:
        if ask in self._asks:
            self._asks.remove(ask)
            self._refuse(ask, f"not enough became free within {self._settings.wait_s:g} s", _RETRY_S)
            self._on_change()

    def _withdraw(self, ask: MemoryAsk) -> None:
        if ask in self._asks:
            self._asks.remove(ask)
            self._on_change()

    def _grant(self, ask: MemoryAsk) -> None:
        ask.asker.reserved_bytes = ask.size_bytes
        budget = self._settings.budget_bytes
        free = memory_policy.free_bytes(self._seating.holders(), budget_bytes=budget)
        ask.grant(
            {
                "granted_bytes": ask.size_bytes,
                "budget_bytes": budget or None,
                "free_bytes": free if budget else None,
            }
        )

    def _refuse(self, ask: MemoryAsk, reason: str, retry_after_s: float | None = None) -> None:
        ask.fail(
            memory_policy.insufficient(
                reason,
                self._seating.holders(ask.asker),
                need_bytes=self._need(ask),
                budget_bytes=self._settings.budget_bytes,
                retry_after_s=retry_after_s,
            )
        )

    def _is_kept(self, ask: MemoryAsk) -> bool:
        """Whether it is for ever in vain that it waits, also when those before it are gone."""
        return self._plan(ask, claimed=0).room is Room.KEPT

    def _refuse_class(self, ask: MemoryAsk) -> None:
        reason = f"the rest is held by a higher class, which gives way to no {ask.priority.word} call"
        self._refuse(ask, reason, _RETRY_S)

    def _notice(self, ask: MemoryAsk) -> None:
        text = memory_policy.waiting_text(
            self._seating.holders(ask.asker), need_bytes=self._need(ask), budget_bytes=self._settings.budget_bytes
        )
        ask.on_notice(text, "queued")

    # -- room is made

    def settle(self) -> bool:
        """Something changed: whoever finds enough now is answered. Whether one was.

        The first in line is looked at first; one behind it may go on with what is left, since the first may wait for
        that very one. Not with what is being made free for the first.
        """
        if self._is_settling:
            return False
        self._is_settling = True
        has_answered, claimed = False, 0
        try:
            for ask in tuple(self._asks):
                if ask.is_answered or not ask.is_wanted:
                    continue
                plan = self._plan(ask, claimed=claimed)
                if plan.room is Room.FREE:
                    self._asks.remove(ask)
                    self._grant(ask)
                    has_answered = True
                    continue
                if plan.room is Room.KEPT and self._is_kept(ask):
                    self._asks.remove(ask)
                    self._refuse_class(ask)
                    has_answered = True
                    continue
                if plan.room not in (Room.BUSY, Room.KEPT):
                    claimed += self._need(ask) - used_bytes(ask.asker)
                self._evict(plan)
                self._notice(ask)
        finally:
            self._is_settling = False
        return has_answered

    def _claimed(self, newcomer: MemoryAsk) -> int:
        """What is being made free for those that wait already and come before it."""
        claimed = 0
        for ask in self._asks:
            if ask.turn < newcomer.turn and self._plan(ask, claimed=claimed).room in (Room.SOON, Room.FREE):
                claimed += self._need(ask) - used_bytes(ask.asker)
        return claimed

    def _plan(self, ask: MemoryAsk, *, claimed: int) -> RoomPlan:
        return memory_policy.make_room(
            self._seating.holders(ask.asker),
            need_bytes=self._need(ask),
            budget_bytes=self._settings.budget_bytes - claimed,
            priority=ask.priority,
        )

    def _need(self, ask: MemoryAsk) -> int:
        return max(ask.size_bytes, used_bytes(ask.asker))

    def _evict(self, plan: RoomPlan) -> None:
        for key in plan.victims:
            self._end_session(key)

    def stats(self) -> MemoryStats:
        used = sum(one.used_bytes for one in self._seating.holders())
        return MemoryStats(budget_bytes=self._settings.budget_bytes, used_bytes=used, waiting=len(self._asks))

    def trim(self) -> None:
        """Some may hold more than they were granted: idle ones are ended until the rest is within the budget."""
        budget = self._settings.budget_bytes
        if budget and not self._asks:
            for key in memory_policy.over_budget(self._seating.holders(), budget_bytes=budget):
                _LOGGER.info("%s is ended: more memory is held than memory.budget_bytes allows", key)
                self._end_session(key)
