"""A loop is woken by a thread that computes: every callback is called, on the loop's thread, and none after its end."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path

from cartdeck_modelkit.bell import bell_of

COUNT = 2000


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_all_that_is_rung_for_from_another_thread_is_called_in_order_on_the_loops_own() -> None:
    found: list[tuple[int, int]] = []

    async def run() -> None:
        bell, is_done = bell_of(asyncio.get_running_loop()), asyncio.Event()

        def ring() -> None:
            for number in range(COUNT):
                bell.ring(lambda number=number: found.append((number, threading.get_ident())))
            bell.ring(is_done.set)

        thread = threading.Thread(target=ring)
        thread.start()
        async with asyncio.timeout(30):
            await is_done.wait()
        thread.join()

    asyncio.run(run())
    assert found == [(number, threading.get_ident()) for number in range(COUNT)]


def test_a_callback_that_fails_keeps_none_of_the_others_from_being_called() -> None:
    async def run() -> None:
        loop, is_done, reports = asyncio.get_running_loop(), asyncio.Event(), list[str]()
        loop.set_exception_handler(lambda loop, context: reports.append(str(context["exception"])))
        bell = bell_of(loop)

        def fail() -> None:
            raise ValueError("on purpose")

        bell.ring(fail)
        bell.ring(is_done.set)
        async with asyncio.timeout(30):
            await is_done.wait()
        assert reports == ["on purpose"]

    asyncio.run(run())


def test_a_loop_has_one_bell_and_it_ends_with_the_loop() -> None:
    async def run() -> "tuple[object, weakref.ref[asyncio.AbstractEventLoop]]":
        loop = asyncio.get_running_loop()
        bell = bell_of(loop)
        assert bell_of(loop) is bell
        return bell, weakref.ref(loop)

    gc.collect()  # loops of other tests
    descriptors = open_descriptors()
    bell, loop = asyncio.run(run())
    bell.ring(lambda: None)  # type: ignore[attr-defined]
    gc.collect()
    assert loop() is None
    assert open_descriptors() <= descriptors  # what others had open may have been closed meanwhile
    bell.ring(lambda: None)  # type: ignore[attr-defined]
