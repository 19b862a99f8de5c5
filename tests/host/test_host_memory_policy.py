"""Decisions about memory without processes: what fits, whom to evict for it, what a refusal says, how much there is."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck.pool import memory_policy
from cartdeck.pool.machine_memory import group_limits, total_memory_bytes
from cartdeck.pool.memory_policy import Holder, Room
from cartdeck.pool.policy import SessionKey
from cartdeck.settings import MemorySettings, default_memory_budget_bytes
from cartdeck_protocol.errors import Code


def holder(name: str, used_bytes: int, **changes: Any) -> Holder:
    values: dict[str, Any] = {"is_idle": True, "is_ending": False, "used_at_s": 0.0, **changes}
    return Holder(SessionKey(name), used_bytes, **values)


def plan(others: list[Holder], need: int, budget: int = 1000) -> tuple[Room, list[str]]:
    found = memory_policy.make_room(others, need_bytes=need, budget_bytes=budget)
    return found.room, [key.cartridge for key in found.victims]


def test_what_fits_is_free() -> None:
    assert plan([], 1000) == (Room.FREE, [])
    assert plan([holder("a", 500)], 500) == (Room.FREE, [])


def test_the_idle_ones_unused_for_longest_make_room_and_no_more_of_them_than_it_takes() -> None:
    idle = [holder("new", 300, used_at_s=3.0), holder("old", 300, used_at_s=1.0), holder("middle", 300, used_at_s=2.0)]
    assert plan(idle, 300) == (Room.EVICT, ["old"])
    assert plan(idle, 700) == (Room.EVICT, ["old", "middle"])
    assert plan(idle, 1000) == (Room.EVICT, ["old", "middle", "new"])


def test_an_old_one_stays_when_a_newer_one_must_go_anyway_and_is_enough() -> None:
    assert plan([holder("old", 100, used_at_s=1.0), holder("new", 800, used_at_s=2.0)], 700) == (Room.EVICT, ["new"])


def test_busy_ones_are_waited_for_and_nobody_is_evicted_in_vain() -> None:
    held = [holder("busy", 600, is_idle=False), holder("idle", 300)]
    assert plan(held, 400) == (Room.EVICT, ["idle"])
    assert plan(held, 500) == (Room.BUSY, [])


def test_those_on_their_way_out_are_waited_for_first() -> None:
    held = [holder("ending", 500, is_idle=False, is_ending=True), holder("idle", 400)]
    assert plan(held, 600) == (Room.SOON, [])
    assert plan(held, 700) == (Room.EVICT, ["idle"])


HOLDERS = st.lists(
    st.builds(
        Holder,
        st.integers(0, 10**6).map(lambda number: SessionKey("x", str(number))),
        st.integers(0, 1000),
        st.booleans(),
        st.booleans(),
        st.floats(0, 100),
    ),
    max_size=8,
    unique_by=lambda one: one.key,
)


@given(HOLDERS, st.integers(0, 1500))
def test_whoever_is_evicted_is_idle_needed_and_enough(others: list[Holder], need: int) -> None:
    found = memory_policy.make_room(others, need_bytes=need, budget_bytes=1500)
    by_key = {one.key: one for one in others}
    victims = [by_key[key] for key in found.victims]
    assert all(one.is_idle and not one.is_ending for one in victims)
    left = sum(one.used_bytes for one in others if one not in victims and not one.is_ending) + need
    if found.room is Room.EVICT:
        assert left <= 1500
        assert all(left + one.used_bytes > 1500 for one in victims)
    elif found.room is Room.BUSY:
        assert not victims
        assert sum(one.used_bytes for one in others if not (one.is_idle or one.is_ending)) + need > 1500


def test_beyond_the_budget_idle_ones_go_but_for_the_last() -> None:
    def over(held: list[Holder]) -> list[str]:
        return [key.cartridge for key in memory_policy.over_budget(held, budget_bytes=1000)]

    assert over([holder("a", 500), holder("b", 500)]) == []
    assert over([holder("a", 600, used_at_s=1.0), holder("b", 600, used_at_s=2.0)]) == ["a"]
    assert over([holder("a", 2000)]) == []
    assert over([holder("a", 900), holder("b", 200, is_idle=False)]) == ["a"]
    assert over([holder("a", 900), holder("b", 900, is_ending=True)]) == []


def test_a_refusal_names_what_is_needed_what_is_free_and_who_holds_the_rest() -> None:
    held = [holder("small", 100), holder("large", 600, is_idle=False)]
    error = memory_policy.insufficient("why", held, need_bytes=500, budget_bytes=1000, retry_after_s=1.0)
    assert error.code is Code.INSUFFICIENT_MEMORY
    assert (error.details["need"], error.details["free"], error.details["budget"]) == (500, 300, 1000)
    assert [(one["cartridge"], one["bytes"], one["state"]) for one in error.details["holders"]] == [
        ("large", 600, "busy"),
        ("small", 100, "idle"),
    ]
    assert str(error) == "500 bytes of memory are needed and 300 bytes of 1.0 kB are free: why"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (700_000_000, "700 MB"), (20 * 10**9, "20 GB")],
)
def test_sizes_are_shown_in_a_unit_that_people_read(size: int, text: str) -> None:
    assert memory_policy.shown(size) == text


def test_the_budget_is_most_of_the_machine_or_of_the_control_group() -> None:
    total = total_memory_bytes()
    assert total is not None
    assert MemorySettings().budget_bytes == default_memory_budget_bytes() == int(total * 0.85)
    assert MemorySettings(budget_bytes=0).budget_bytes == 0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "ascii")


def test_the_smallest_limit_along_a_control_groups_path_counts(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    write(groups, "4:memory:/job/one\n3:cpu,cpuacct:/job\n0::/user/mine\n")
    write(root / "memory/job/one/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "memory/job/memory.limit_in_bytes", "5000\n")
    write(root / "user/mine/memory.max", "max\n")
    write(root / "user/memory.max", "7000\n")
    write(root / "memory.max", "nonsense\n")
    assert sorted(group_limits(groups, root)) == [5000, 7000, 9223372036854771712]
    assert list(group_limits(tmp_path / "absent", root)) == []


def test_a_group_whose_path_is_not_seen_here_is_the_root_that_is(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    write(groups, "0::/../elsewhere\nbroken\n")
    write(root / "memory.max", "4000\n")
    assert list(group_limits(groups, root)) == [4000]
