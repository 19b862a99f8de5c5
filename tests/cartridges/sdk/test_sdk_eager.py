"""The first step of a handler runs as it is started, and is the step of a real task all the same."""

import asyncio
from contextvars import ContextVar

import pytest

from cartdeck_sdk.eager import start_at_once

_NAME: ContextVar[str] = ContextVar("name", default="outside")


async def _from_a_callback(coroutine) -> "asyncio.Task[None]":
    """Started where a service starts it: in a callback of the loop, outside of any task."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[asyncio.Task[None]] = loop.create_future()
    loop.call_soon(lambda: started.set_result(start_at_once(loop, coroutine)))
    return await asyncio.wait_for(started, 20)


async def _steps(said: list[str], wait: asyncio.Event | None) -> None:
    said.append(_NAME.get())
    _NAME.set("inside")
    task = asyncio.current_task()
    assert task is not None
    said.append(task.get_name())
    if wait is not None:
        async with asyncio.timeout(20):  # which needs a task
            await wait.wait()
        said.append(_NAME.get())


def test_what_needs_no_wait_is_over_when_it_was_started():
    async def run() -> None:
        said: list[str] = []
        task = await _from_a_callback(_steps(said, None))
        assert task.done()
        assert said == ["outside", "call"]
        assert _NAME.get() == "outside"  # its context is its own

    asyncio.run(run())


def test_what_waits_goes_on_as_any_task():
    async def run() -> None:
        said: list[str] = []
        go = asyncio.Event()
        task = await _from_a_callback(_steps(said, go))
        assert not task.done()
        go.set()
        await asyncio.wait_for(task, 20)
        assert said == ["outside", "call", "inside"]

    asyncio.run(run())


class _Busy(asyncio.SelectorEventLoop):
    """It is asked for something else while a task is made, as by a finalizer that the collector runs just then."""

    said: list[str] | None = None

    def get_debug(self) -> bool:
        if self.said is not None:
            said, self.said = self.said, None
            self.call_soon(said.append, "another")
        return super().get_debug()


def test_what_is_asked_of_the_loop_while_the_task_is_made_is_done_too():
    said: list[str] = []
    loop = _Busy()

    def start() -> None:
        loop.said = said
        start_at_once(loop, _steps(said, None))
        said.append("started")
        loop.call_soon(loop.stop)

    loop.call_soon(start)
    loop.call_later(2, loop.stop)
    loop.run_forever()
    loop.close()
    assert [one for one in said if one != "another"] == ["outside", "call", "started"]
    assert "another" in said


def test_the_loop_takes_callbacks_as_before():
    async def fail() -> None:
        raise ValueError("in the first step")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = await _from_a_callback(fail())
        with pytest.raises(ValueError, match="in the first step"):
            await task
        assert "call_soon" not in vars(loop)

    asyncio.run(run())
