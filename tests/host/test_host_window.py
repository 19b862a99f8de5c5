"""Windows: narrow at first, wider for small chunks and fast readers while the reserve covers the worst case."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cartdeck import Data, Engine, Settings
from cartdeck.calls.window import Reserve, Window
from cartdeck_protocol.wire import InStream, OutStream


class Outlet:
    """Counts the chunks granted."""

    def __init__(self) -> None:
        self.granted = 0

    def wake(self, stream: OutStream) -> None: ...

    def grant(self, stream: InStream, chunks: int) -> None:
        self.granted += chunks


def make(reserve: Reserve, *, credit: int = 4, grown: int = 32) -> tuple[Window, InStream, Outlet]:
    outlet = Outlet()
    stream = InStream(outlet, 2, 0, media="", name="", is_sequence=False, credit=credit)
    return Window(stream, reserve, credit=credit, grown_credit=grown), stream, outlet


def take(window: Window, count: int, size: int, *, is_last: bool = False) -> None:
    for _ in range(count):
        window.take(size, is_last=is_last)


def test_large_chunks_that_a_fast_reader_takes_widen_the_window_by_half_as_much() -> None:
    reserve = Reserve(1 << 25, chunk_bytes=1 << 18)
    window, stream, _ = make(reserve)
    stream.window -= 2
    take(window, 2, 1 << 18, is_last=True)
    assert stream.window == 16
    window.close()
    assert reserve.free_bytes == 1 << 25


def test_large_chunks_are_granted_to_a_slow_reader_as_they_are_taken() -> None:
    reserve = Reserve(1 << 25, chunk_bytes=1 << 18)
    window, stream, outlet = make(reserve)
    stream.window -= 4
    take(window, 4, 1 << 18)
    assert (outlet.granted, stream.window) == (4, 4)
    assert reserve.free_bytes == 1 << 25


def test_small_chunks_widen_the_window_and_the_reserve_gets_back_what_it_lent() -> None:
    reserve = Reserve(1 << 25, chunk_bytes=1 << 18)
    window, stream, outlet = make(reserve)
    stream.window -= 2
    take(window, 2, 16)
    assert stream.window == 32
    assert reserve.free_bytes == (1 << 25) - 28 * (1 << 18)
    before = outlet.granted
    take(window, 15, 16)
    assert outlet.granted == before
    take(window, 1, 16)
    assert outlet.granted == before + 16, "half of the wider window at a time"
    window.close()
    window.close()
    take(window, 64, 16)
    assert reserve.free_bytes == 1 << 25


def test_an_empty_reserve_leaves_windows_as_they_are() -> None:
    reserve = Reserve(28 << 18, chunk_bytes=1 << 18)
    first, _, _ = make(reserve)
    second, stream, _ = make(reserve)
    take(first, 2, 16)
    stream.window -= 2
    take(second, 2, 16)
    assert stream.window == 4
    assert reserve.free_bytes == 0
    first.close()
    stream.window -= 2
    take(second, 2, 16)
    assert stream.window == 32


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_the_narrowest_windows_work(credit: int) -> None:
    window, stream, _ = make(Reserve(0, chunk_bytes=1), credit=credit, grown=1)
    for _ in range(10):
        stream.window -= 1
        window.take(1 << 18, is_last=False)
        assert stream.window >= 1


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_left")
async def test_60_readers_that_stop_hold_four_chunks_each(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        calls = [engine.call("emit", {"count": 50}, keep_bytes=0) for _ in range(60)]
        await asyncio.gather(*(call.__aenter__() for call in calls))
        intakes = [call._intake for call in calls]  # pyright: ignore[reportPrivateUsage]  # what waits is nobody else's business
        async with asyncio.timeout(20):
            while min(intake.waiting_chunks for intake in intakes if intake is not None) < 4:
                await engine.run("echo", {"data": b"others get on"}, timeout_s=30)
        assert max(intake.waiting_chunks for intake in intakes if intake is not None) == 4
        sizes = []
        for call in calls:
            sizes.append(sum([len(event.value) async for event in call if isinstance(event, Data)]))
        assert sizes == [50 * 262_144] * 60
        assert engine.reserve.free_bytes == engine.settings.wire.reserve_bytes


@pytest.mark.anyio
async def test_a_stream_of_small_chunks_borrows_and_gives_back(engine: Engine, wait_until: Callable[..., Any]) -> None:
    lowest = engine.reserve.free_bytes
    async with engine.call("emit-items", {"count": 2000, "merged": False}) as call:
        async for _ in call:
            lowest = min(lowest, engine.reserve.free_bytes)
    assert lowest < engine.settings.wire.reserve_bytes
    assert engine.reserve.free_bytes == engine.settings.wire.reserve_bytes
    async with engine.call("emit-items", {"count": 1_000_000, "merged": False}) as call:
        async for _ in call:
            if engine.reserve.free_bytes == lowest:
                break
        call.cancel()
        await wait_until(lambda: call.is_answered)
    assert engine.reserve.free_bytes == engine.settings.wire.reserve_bytes
