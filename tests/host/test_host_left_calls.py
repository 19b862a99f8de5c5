"""A call that is left, or looked at before its time: nothing of it waits on, and no part of its output passes for all
of it."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import cartdeck
from cartdeck import CartdeckError, Code, Data, Engine, Settings

pytestmark = pytest.mark.anyio
SIZE = 100_000


@pytest.fixture
async def engine(quick: Callable[..., Settings], nothing_left: None) -> AsyncIterator[Engine]:
    async with Engine(quick(wire={"backlog_bytes": 1 << 20})) as engine:
        yield engine


async def _first_piece(call: Any) -> None:
    async for event in call:
        if isinstance(event, Data):
            return


async def test_a_result_is_not_given_before_its_output_was_taken(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    async with engine.call("echo", {"data": "hello"}) as call:
        await wait_until(lambda: call.is_answered)
        with pytest.raises(RuntimeError, match="was not taken"):
            _ = call.result
        await _first_piece(call)
        assert [type(event).__name__ async for event in call] == ["End"]
        assert call.result.text == "hello"
    assert call.result.text == "hello"


async def test_the_result_of_a_call_that_was_left_early_is_no_part_of_it(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    async with engine.call("emit", {"count": 4, "size": SIZE}) as call:
        await _first_piece(call)
        await wait_until(lambda: call.is_answered)
    with pytest.raises(RuntimeError, match="was not taken"):
        _ = call.result


async def test_calls_that_ended_before_they_were_left_hold_nothing(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    left: list[Any] = []
    for _ in range(20):
        async with engine.call("emit", {"count": 4, "size": SIZE}) as call:
            await _first_piece(call)
            await wait_until(lambda call=call: call.is_answered)
        left.append(call)
    assert (engine.backlog.used_bytes, engine.backlog.stored_bytes) == (0, 0)


async def test_what_was_collected_is_its_callers_and_leaves_room_for_others(engine: Engine) -> None:
    collected: list[Any] = []
    for _ in range(20):
        async with engine.call("emit", {"count": 4, "size": SIZE}) as call:
            assert len((await call.collect()).data) == 4 * SIZE
            collected.append(call)
    assert engine.backlog.used_bytes == 0


def test_a_blocking_call_that_was_left_holds_nothing(quick: Callable[..., Settings]) -> None:
    left: list[Any] = []
    with cartdeck.open(quick(wire={"backlog_bytes": 1 << 20})) as engine:

        def leave() -> None:
            for _ in range(3):
                with engine.call("emit", {"count": 200, "size": SIZE}) as call:
                    next(event for event in call if isinstance(event, Data))
                left.append(call)

        threads = [threading.Thread(target=leave) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(left) == 12
        assert engine.run("echo", {"data": "x"}).text == "x"
        backlog = engine._engine.backlog  # pyright: ignore[reportPrivateUsage]  # what it holds is not public
        assert (backlog.used_bytes, backlog.stored_bytes) == (0, 0)


@pytest.mark.parametrize("keep_bytes", ["8", -1, 1.5, True, float("nan")])
async def test_a_wrong_keep_bytes_is_told_to_who_gave_it(engine: Engine, keep_bytes: Any) -> None:
    with pytest.raises(CartdeckError, match="keep_bytes is") as caught:
        engine.call("echo", {"data": "hello"}, keep_bytes=keep_bytes).begin()
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "keep_bytes")
    async with engine.call("echo", {"data": "hello"}, keep_bytes=5) as call:
        assert (await call.collect()).text == "hello"
