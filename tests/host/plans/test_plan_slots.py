"""Places: of each cartridge and in all, first come first served, and none lost when somebody leaves."""

import asyncio

import pytest

from cartdeck.plans.slots import Slots

pytestmark = pytest.mark.anyio


async def test_a_cartridge_has_so_many_places_as_it_says_and_all_have_so_many_as_the_run_says() -> None:
    slots = Slots(3)
    assert slots.take_now("a", 2)
    assert slots.take_now("a", 2)
    assert not slots.take_now("a", 2)
    assert slots.take_now("b", 9)
    assert not slots.take_now("b", 9)
    slots.give("a")
    assert slots.take_now("b", 9)


async def test_who_came_first_goes_first_and_a_newcomer_does_not_overtake() -> None:
    slots, order = Slots(10), list[int]()
    assert slots.take_now("a", 1)

    async def work(number: int) -> None:
        await slots.take("a", 1)
        order.append(number)
        slots.give("a")

    tasks = [asyncio.ensure_future(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    slots.give("a")
    assert not slots.take_now("a", 1)
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert order == [0, 1, 2, 3, 4]
    assert slots.take_now("a", 1)


async def test_a_place_given_to_one_who_leaves_in_the_same_moment_is_not_lost() -> None:
    slots = Slots(1)
    assert slots.take_now("a", 1)
    waiting = [asyncio.ensure_future(slots.take(name, 1)) for name in ("a", "b", "a")]
    await asyncio.sleep(0)
    slots.give("a")
    waiting[0].cancel()
    waiting[2].cancel()
    await asyncio.wait(waiting[:1])
    await asyncio.wait_for(waiting[1], 20)
    slots.give("b")
    assert slots.take_now("a", 1)
