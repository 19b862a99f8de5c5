"""Whom a class makes give way, without processes: over any state of the places and of memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck import CartdeckError, Code
from cartdeck.pool import memory_policy, policy
from cartdeck.pool.memory_policy import Holder, Room
from cartdeck.pool.policy import Action, Seat, SessionKey
from cartdeck.pool.priority import Priority, priority_of

LOW, MIDDLE, HIGH, HELD = Priority
BUDGET = 1500
CLASSES = st.sampled_from(Priority)
KEYS = st.integers(0, 10**6).map(lambda number: SessionKey("x", str(number)))
HOLDERS = st.lists(
    st.builds(Holder, KEYS, st.integers(0, 1000), st.booleans(), st.booleans(), st.floats(0, 100), CLASSES),
    max_size=8,
    unique_by=lambda one: one.key,
)
SEATS = st.lists(
    st.builds(
        Seat, KEYS, st.booleans(), st.booleans(), st.integers(0, 2), st.floats(0, 100), is_stuck=st.just(False),
        priority=CLASSES,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.key,
)  # fmt: skip


@given(HOLDERS, st.integers(0, BUDGET), CLASSES)
def test_nobody_goes_who_is_busy_or_of_a_class_that_does_not_give_way(
    others: list[Holder], need: int, asker: Priority
) -> None:
    found = memory_policy.make_room(others, need_bytes=need, budget_bytes=BUDGET, priority=asker)
    victims = [one for one in others if one.key in found.victims]
    assert all(one.is_idle and not one.is_ending for one in victims)
    assert not any(one.priority is HELD for one in victims)
    if asker is LOW:
        assert all(one.priority is LOW for one in victims)


@given(HOLDERS, st.integers(0, BUDGET), CLASSES)
def test_a_higher_class_goes_only_where_all_lower_ones_and_older_ones_of_its_own_are_not_enough(
    others: list[Holder], need: int, asker: Priority
) -> None:
    found = memory_policy.make_room(others, need_bytes=need, budget_bytes=BUDGET, priority=asker)
    can_go = [one for one in others if one.is_idle and not one.is_ending and asker.may_evict(one.priority)]
    stays = sum(one.used_bytes for one in others if one not in can_go and not one.is_ending) + need
    for victim in (one for one in can_go if one.key in found.victims):
        order = (victim.priority, victim.used_at_s)
        later = [one for one in can_go if (one.priority, one.used_at_s) >= order]
        assert stays + sum(one.used_bytes for one in later) > BUDGET


@given(HOLDERS, st.integers(0, BUDGET), CLASSES)
def test_one_waits_only_for_what_can_become_free_for_its_class(
    others: list[Holder], need: int, asker: Priority
) -> None:
    found = memory_policy.make_room(others, need_bytes=need, budget_bytes=BUDGET, priority=asker)
    live = [one for one in others if not one.is_ending]
    kept = sum(one.used_bytes for one in live if not asker.may_evict(one.priority)) + need
    assert (found.room is Room.KEPT) <= (kept > BUDGET)
    if found.room is Room.BUSY:
        assert kept <= BUDGET
    if found.room is Room.EVICT:
        assert sum(one.used_bytes for one in live if one.key not in found.victims) + need <= BUDGET


@given(HOLDERS)
def test_beyond_the_budget_the_lowest_class_goes_and_what_is_held_stays(others: list[Holder]) -> None:
    victims = [one for one in others if one.key in memory_policy.over_budget(others, budget_bytes=BUDGET)]
    assert all(one.is_idle and not one.is_ending and one.priority is not HELD for one in victims)
    excess = sum(one.used_bytes for one in others if not one.is_ending) - BUDGET
    for victim in victims:
        lower = [one for one in others if one.is_idle and not one.is_ending and one.priority < victim.priority]
        assert sum(one.used_bytes for one in lower) < excess


@given(SEATS, CLASSES)
def test_a_place_is_taken_from_the_lowest_class_and_in_it_from_the_one_unused_for_longest(
    seats: list[Seat], asker: Priority
) -> None:
    found = policy.place(seats, limit=len(seats), priority=asker)
    can_go = [one for one in seats if asker.may_evict(one.priority)]
    idle = [one for one in can_go if not one.is_loading and not one.open_requests and not one.is_ending]
    if any(one.is_ending for one in seats):
        assert found == policy.Placement(Action.WAIT)
    elif idle:
        [victim] = [one for one in idle if one.key == found.victim]
        least = min((one.priority, one.used_at_s) for one in idle)
        assert (victim.priority, victim.used_at_s) == least
    else:
        assert found.action is (Action.WAIT if can_go else Action.REFUSE)


def seat(name: str, priority: Priority, **changes: Any) -> Seat:
    values: dict[str, Any] = {"is_loading": False, "is_ending": False, "open_requests": 0, "used_at_s": 0.0}
    return Seat(SessionKey(name), **{**values, "is_stuck": False, "priority": priority, **changes})


def test_places_by_example() -> None:
    seats = [seat("a", HIGH), seat("b", MIDDLE, used_at_s=9.0), seat("c", MIDDLE, used_at_s=8.0), seat("g", HELD)]

    def victim(asker: Priority, *more: Seat) -> tuple[Action, SessionKey | None]:
        found = policy.place([*seats, *more], limit=len(seats) + len(more), priority=asker)
        return found.action, found.victim

    assert victim(MIDDLE) == (Action.EVICT, SessionKey("c"))
    assert victim(LOW) == (Action.REFUSE, None)
    assert victim(MIDDLE, seat("d", LOW, used_at_s=10.0)) == (Action.EVICT, SessionKey("d"))
    assert victim(LOW, seat("d", LOW, open_requests=1)) == (Action.WAIT, None)
    assert policy.place(seats[:1], limit=1, priority=MIDDLE).victim == SessionKey("a")  # the last, not never


def test_a_class_is_named_by_its_word_and_no_other() -> None:
    assert [priority_of(word) for word in ("opportunistic", "standard", "critical")] == [LOW, MIDDLE, HIGH]
    assert priority_of(HELD) is HELD
    for word in ("held", "Critical", "", "high"):
        with pytest.raises(CartdeckError, match="expected one of: opportunistic, standard, critical") as caught:
            priority_of(word)
        assert caught.value.code is Code.BAD_ARGUMENT
