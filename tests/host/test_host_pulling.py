"""Plain iterables, asked for items in threads: what came is handed over, however late its thread began."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from cartdeck.calls import pulling
from cartdeck.calls.pulling import Source

pytestmark = pytest.mark.anyio
LIMIT_S = 30.0


async def taken_until(source: Source, size: int) -> list[int]:
    """The items of a source, up to so many."""
    found: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < size:
            items, _ = await source.next_items()
            found += items
    return found


@pytest.mark.parametrize("late_s", [0.0, 0.05, 0.3])
async def test_what_came_at_once_is_handed_over_while_the_source_blocks_though_its_thread_began_late(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    monkeypatch.setattr(pulling, "_THREADS", pulling._Threads(1))  # who is second waits for the first
    free, go = threading.Event(), threading.Event()

    def blocked() -> Iterator[int]:
        free.wait(LIMIT_S)
        yield 0

    def source() -> Iterator[int]:
        yield 1
        yield 2
        assert go.wait(LIMIT_S)
        yield 3

    first = asyncio.create_task(taken_until(Source(blocked()), 1))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(late_s, free.set)
    second = Source(source())
    assert await taken_until(second, 2) == [1, 2]
    go.set()
    assert await taken_until(second, 1) == [3]
    rest, is_done = await second.next_items()
    while not is_done:
        more, is_done = await second.next_items()
        rest += more
    assert rest == []
    assert await first == [0]


async def test_a_fast_source_is_handed_over_in_batches() -> None:
    source = Source(iter(range(100_000)))
    batches = []
    while True:
        items, is_done = await source.next_items()
        batches.append(items)
        if is_done:
            break
    assert [item for batch in batches for item in batch] == list(range(100_000))
    assert len(batches) < 20_000, "a thread hop for each would be far too many"


async def test_a_machine_without_a_thread_left_is_told_and_the_next_source_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulling, "_THREADS", pulling._Threads(1))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked: list[str] = []

    def source() -> Iterator[int]:
        asked.append("refused")
        yield 1

    refused = Source(source())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await refused.next_items()
    assert await taken_until(Source(iter([2])), 1) == [2]
    assert asked == [], "nobody waits for it any more"
    assert await taken_until(refused, 1) == [1]
