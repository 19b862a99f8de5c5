"""What a model's thread has for a request arrives whole and in order, in a queue that has an end."""

import asyncio
import threading

import pytest

from cartdeck_modelkit import delivery as module
from cartdeck_modelkit.delivery import Delivery
from cartdeck_protocol.errors import CartdeckError, Code

LIMIT_S = 10.0


async def all_of(delivery: Delivery[str]) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        return [item async for items in delivery.batches() for item in items]


def test_what_is_put_arrives_whole_and_in_order() -> None:
    async def run() -> list[str]:
        delivery = Delivery[str]()

        def write() -> None:
            for number in range(2000):
                delivery.put(str(number))
            delivery.end()

        threading.Thread(target=write).start()
        return await all_of(delivery)

    assert asyncio.run(run()) == [str(number) for number in range(2000)]


def test_what_came_before_an_error_arrives_before_it() -> None:
    async def run() -> list[str]:
        delivery, got = Delivery[str](), list[str]()
        delivery.put("a")
        delivery.end(RuntimeError("broken"))
        batches = delivery.batches()
        got += await anext(batches)
        with pytest.raises(RuntimeError, match="broken"):
            await anext(batches)
        return got

    assert asyncio.run(run()) == ["a"]


def test_a_queue_is_full_until_its_reader_takes_something_and_says_so() -> None:
    told: list[bool] = []
    delivery = Delivery[str](on_room=lambda: told.append(True), most_unread=10)
    delivery.put("x" * 9, 9)
    assert not delivery.is_full
    delivery.put("x", 1)
    assert delivery.is_full
    assert delivery.take() == ["x" * 9, "x"]
    assert not delivery.is_full
    assert told == [True]
    assert delivery.take() == []
    assert told == [True]


def test_a_reader_that_takes_nothing_for_too_long_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_S", -1.0)
    delivery = Delivery[str](most_unread=1)
    delivery.raise_if_stalled()
    delivery.put("x")
    with pytest.raises(CartdeckError) as caught:
        delivery.raise_if_stalled()
    assert caught.value.code is Code.READER_STALLED


def test_a_reader_whose_loop_is_gone_is_no_error_of_the_writer() -> None:
    async def make() -> Delivery[str]:
        return Delivery[str]()

    delivery = asyncio.run(make())
    delivery.put("x")
    delivery.end()
    assert delivery.take() == ["x"]


def test_what_goes_past_the_reader_does_so_in_order_and_only_while_it_is_taken() -> None:
    delivery, sent = Delivery[str](), list[str]()

    def send(item: str) -> bool:
        is_taken = len(sent) < 2
        if is_taken:
            sent.append(item)
        return is_taken

    delivery.put("a")
    delivery.go_past(send)  # something waits: it comes first
    delivery.put("b")
    assert (sent, delivery.take()) == ([], ["a", "b"])
    delivery.go_past(send)
    for item in "cdef":
        delivery.put(item)
    assert (sent, delivery.take()) == (["c", "d"], ["e", "f"])
    sent.clear()
    delivery.go_past(send)
    delivery.stay()
    delivery.put("g")
    assert (sent, delivery.take()) == ([], ["g"])
