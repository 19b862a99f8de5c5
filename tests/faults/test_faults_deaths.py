"""Each kind of death at each moment: callers learn it in time, the next call works, nothing is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Data, Engine, Progress, Settings
from cartdeck.sessions.session import Session

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left")]

DEATHS = ["SIGKILL", "SIGSEGV", "SIGABRT", "0", "3"]
IN_TIME_S = 10.0
"""The promise is a second; a loaded machine gets more."""

Open = Callable[[Engine, Session], Awaitable[list[Call]]]


def check_death(error: CartdeckError, death: str) -> None:
    if death.startswith("SIG"):
        assert error.details["signal"] == death
    else:
        assert error.details["exit_code"] == int(death)


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("moment", ["spawn", "hello", "identity"])
async def test_a_death_before_it_is_ready_is_a_failed_start_and_the_next_start_works(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any, moment: str, death: str
) -> None:
    cap = foreign(moment, death)
    async with Engine(quick()) as engine:
        error = await failure_of(engine.run(cap, {"data": "x"}))
        assert error.code is Code.START_FAILED
        assert error.details["log"][-1] == "last words"
        check_death(error, death)
        assert (await engine.run(cap, {"data": "works"}, timeout_s=30)).text == "works"


# -- deaths of a process that works


async def idle(_engine: Engine, _session: Session) -> list[Call]:
    return []


async def loading(engine: Engine, _session: Session) -> list[Call]:
    call = engine.call("work", {"steps": 1, "seconds": 60})
    await call.__aenter__()
    async for event in call:
        if isinstance(event, Progress) and event.phase == "working":
            return [call]
    raise AssertionError("it ended without work")


async def streaming(engine: Engine, _session: Session) -> list[Call]:
    return [await begun(engine, "emit", {"count": 1_000_000, "interval": 0.001})]


async def writing_from_threads(engine: Engine, _session: Session) -> list[Call]:
    return [await begun(engine, "misbehave", {"action": "emit-from-threads", "amount": 1_000_000})]


async def waiting_for_credit(engine: Engine, _session: Session) -> list[Call]:
    call = await begun(engine, "emit", {"count": 1_000_000})
    await until(lambda: call.reader_since_s(engine.clock.now_s) is not None)
    return [call]


async def not_reading(engine: Engine, session: Session) -> list[Call]:
    """The loop is held, so that the pipe to the process fills: the host waits for room in it."""
    holding = engine.call("misbehave", {"action": "hold-loop", "seconds": 60})
    await holding.__aenter__()
    sending = [engine.call("sink", {"data": iter([b"x" * 262_144] * 4)}) for _ in range(4)]
    for one in sending:
        await one.__aenter__()
    await until(lambda: session.is_blocked)
    return [holding, *sending]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the engine's state has no event for it
            await asyncio.sleep(0.005)


async def begun(engine: Engine, cap: str, arguments: dict[str, Any]) -> Call:
    """A call whose first data has come."""
    call = engine.call(cap, arguments, keep_bytes=0)
    await call.__aenter__()
    async for event in call:
        if isinstance(event, Data):
            return call
    raise AssertionError("it ended without data")


@asynccontextmanager
async def mortal(engine: Engine, death: str) -> AsyncIterator[tuple[Session, Callable[[], None]]]:
    """A session of echo that works, and what kills it."""
    await engine.run("echo", {"data": b""}, timeout_s=30)
    if not death.startswith("SIG"):
        await engine.run("misbehave", {"action": "exit-on-signal", "amount": int(death)}, timeout_s=30)
    [session] = engine.pool.sessions
    assert session.process is not None
    pid = session.process.pid
    number = signal.Signals[death] if death.startswith("SIG") else signal.SIGUSR1
    yield session, lambda: os.kill(pid, number)
    assert session.process.returncode is not None


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize(
    "moment",
    [idle, loading, streaming, writing_from_threads, waiting_for_credit, not_reading],
    ids=lambda one: one.__name__,
)
async def test_a_death_reaches_every_caller_in_time_and_the_next_call_works(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any, moment: Open, death: str
) -> None:
    async with Engine(quick()) as engine, mortal(engine, death) as (session, kill):
        calls = await moment(engine, session)
        kill()
        for call in calls:
            error = await failure_of(call.collect(), limit_s=IN_TIME_S)
            assert error.code is Code.CARTRIDGE_DIED
            check_death(error, death)
        await wait_until(lambda: session not in engine.pool.sessions, limit_s=IN_TIME_S)
        assert (await engine.run("echo", {"data": b"next"}, timeout_s=30)).data == b"next"
        assert session not in engine.pool.sessions


async def test_frames_do_not_travel_through_shared_memory_that_a_death_would_leave_behind(
    quick: Callable[..., Settings], failure_of: Any
) -> None:
    before = shared_memory(os.getpid())  # what libraries of other tests have
    async with Engine(quick()) as engine, mortal(engine, "SIGKILL") as (session, kill):
        call = await begun(engine, "emit", {"count": 100, "size": 8 << 20})
        assert session.process is not None
        assert not shared_memory(session.process.pid)
        assert shared_memory(os.getpid()) == before
        kill()
        assert (await failure_of(call.collect())).code is Code.CARTRIDGE_DIED


def shared_memory(pid: int) -> set[bytes]:
    """The files of /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    return {line.split(b"/dev/shm", 1)[1] for line in lines if b"/dev/shm" in line}
