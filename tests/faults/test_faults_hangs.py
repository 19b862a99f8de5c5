"""Processes that stand still, compute, or hold their loop: who is hung, who is only busy, and who comes back."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Code, Data, Engine, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left", "phases")]

NEIGHBOUR = """
import os, sys, time

os.sched_setaffinity(0, {int(sys.argv[1])})
until_s = time.monotonic() + 2.5
print("there", flush=True)
while time.monotonic() < until_s:
    pass
"""


async def test_a_stopped_process_gets_nothing_new_and_is_used_again_when_it_goes_on(
    quick: Callable[..., Settings], wait_until: Any
) -> None:
    async with Engine(quick(health={"heartbeat_s": 1.5, "missed_heartbeats": 1})) as engine:
        await engine.run("echo", {"data": b""}, timeout_s=30)
        [session] = engine.pool.sessions
        assert session.process is not None
        assert session.health is not None
        os.kill(session.process.pid, signal.SIGSTOP)
        await wait_until(lambda: session.health.is_suspect)
        async with engine.call("echo", {"data": b"patient"}, timeout_s=30) as call:
            async for event in call:
                assert isinstance(event, Progress)
                assert event.phase == "queued"
                break
            os.kill(session.process.pid, signal.SIGCONT)
            assert (await call.collect()).data == b"patient"
        assert engine.pool.sessions == [session]


async def test_a_process_that_is_stopped_for_a_moment_mid_stream_loses_nothing(
    quick: Callable[..., Settings],
) -> None:
    async with Engine(quick()) as engine:
        received = 0
        async with engine.call("emit", {"count": 50, "interval": 0.005, "size": 1000}, timeout_s=30) as call:
            async for event in call:
                if isinstance(event, Data):
                    if not received:
                        [session] = engine.pool.sessions
                        assert session.process is not None
                        os.kill(session.process.pid, signal.SIGSTOP)
                        asyncio.get_running_loop().call_later(0.3, os.kill, session.process.pid, signal.SIGCONT)
                    received += len(event.value)
        assert received == 50_000


async def test_an_interpreter_that_is_held_without_work_is_hung_and_replaced(
    quick: Callable[..., Settings], failure_of: Any
) -> None:
    async with Engine(quick(health={"heartbeat_s": 0.2})) as engine:
        error = await failure_of(engine.run("misbehave", {"action": "hold-gil", "seconds": 60}))
        assert error.code is Code.HUNG
        assert (await engine.run("echo", {"data": b"new"}, timeout_s=30)).data == b"new"


@pytest.mark.parametrize(("native", "count"), [(True, 60_000_000), (False, 15_000_000)], ids=["in C", "in Python"])
async def test_a_process_that_computes_is_neither_hung_nor_silent(
    quick: Callable[..., Settings], native: bool, count: int
) -> None:
    """In C the lock is held for about a second: no heartbeat and no keepalive leave, but CPU time is used."""
    settings = quick(health={"heartbeat_s": 0.2, "keepalive_s": 0.1}, call={"silence_s": 20.0 if native else 1.0})
    async with Engine(settings) as engine:
        result = await engine.run("compute", {"count": count, "native": native}, timeout_s=60)
        assert int(result.text) == count * (count - 1) // 2


def put_last(pid: int, core: int) -> None:
    """All threads of a process run on one core, and only when nobody else wants it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(int(thread.name), {core})
    group = Path(f"/proc/{pid}/autogroup")  # where each session of processes has a share of its own
    if group.exists():
        group.write_text("19", "ascii")


async def test_a_process_that_gets_no_core_is_not_hung(quick: Callable[..., Settings]) -> None:
    """Another one has the core for 2.5 s; of it, the process that computes has a few milliseconds."""
    settings = quick(health={"heartbeat_s": 0.2, "keepalive_s": 0.1}, call={"silence_s": 20.0})
    async with Engine(settings) as engine:
        await engine.load("phases", timeout_s=30)
        [session] = engine.pool.sessions
        assert session.process is not None
        core = min(os.sched_getaffinity(0))
        put_last(session.process.pid, core)
        neighbour = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", NEIGHBOUR, str(core)), stdout=asyncio.subprocess.PIPE
        )
        assert neighbour.stdout is not None
        await neighbour.stdout.readline()
        running = asyncio.create_task(engine.run("compute", {"count": 40_000_000, "native": True}))
        await asyncio.wait_for(neighbour.wait(), 60)
        assert not running.done() or running.exception() is None
        assert engine.pool.sessions == [session]
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("cap", ["raise-here", "raise-in-worker"])
async def test_what_is_no_exception_is_answered_and_ends_the_process(
    quick: Callable[..., Settings], failure_of: Any, cap: str
) -> None:
    """Alive but useless would be worse: the next call has a new process, however soon it comes."""
    async with Engine(quick()) as engine:
        for kind in ("SystemExit", "KeyboardInterrupt", "Sudden", "GeneratorExit"):
            await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=30)
            [session] = engine.pool.sessions
            error = await failure_of(engine.run(cap, {"kind": kind}))
            assert error.code is Code.HANDLER_FAILED
            assert kind in str(error)
            assert (await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=30)).text == "loaded"
            assert session not in engine.pool.sessions
            assert session.process is not None
            assert session.process.returncode == (3 if kind == "SystemExit" else 70)


async def test_other_calls_of_a_process_that_a_handler_ends_learn_of_its_death(
    quick: Callable[..., Settings], failure_of: Any
) -> None:
    async with Engine(quick()) as engine:
        await engine.load("phases", timeout_s=30)
        others = [
            asyncio.create_task(engine.run("stay", {"phase": phase}))
            for phase in ("loading", "held-loading", "decoding", "obtaining")
        ]
        async with engine.call("stay", {"phase": "full"}, keep_bytes=0) as slow:
            async for event in slow:
                if isinstance(event, Data):
                    break
            error = await failure_of(engine.run("raise-here", {"kind": "SystemExit"}))
            assert error.code is Code.HANDLER_FAILED
            for other in (*others, slow.collect()):
                error = await failure_of(other)
                assert error.code is Code.CARTRIDGE_DIED, error
                assert error.details["exit_code"] == 3


@pytest.mark.parametrize("cap", ["raise-here", "raise-in-worker"])
async def test_an_exception_is_answered_and_the_process_goes_on(
    quick: Callable[..., Settings], failure_of: Any, cap: str
) -> None:
    async with Engine(quick()) as engine:
        await engine.load("phases", timeout_s=30)
        sessions = engine.pool.sessions
        for kind in ("ValueError", "StopIteration", "StopAsyncIteration", "MemoryError", "TimeoutError"):
            error = await failure_of(engine.run(cap, {"kind": kind}))
            assert error.code is Code.HANDLER_FAILED
            assert kind in str(error)
        assert (await engine.run("stay", {"phase": "loading", "seconds": 0}, timeout_s=30)).text == "loaded"
        assert engine.pool.sessions == sessions


async def test_a_slow_reader_ends_its_own_call_and_no_other_of_that_process(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any
) -> None:
    async with Engine(quick(call={"reader_s": 0.5, "silence_s": 10.0, "cancel_s": 5.0, "abandon_s": 10.0})) as engine:
        await engine.load("phases", timeout_s=30)
        [session] = engine.pool.sessions
        async with engine.call("stay", {"phase": "full"}, keep_bytes=0) as slow:
            received = 0
            other = asyncio.create_task(engine.run("stay", {"phase": "loading", "seconds": 1.5}, timeout_s=30))
            async with engine.call("stay", {"phase": "decoding", "seconds": 1.5}, keep_bytes=0, timeout_s=30) as fast:
                async for event in fast:
                    received += isinstance(event, Data)
            await wait_until(lambda: slow.is_answered)
            assert received > 10
            assert (await other).text == "loaded"
            assert (await failure_of(slow.collect())).code is Code.READER_STALLED
        assert engine.pool.sessions == [session]


async def test_outputs_that_come_whole_to_a_slow_reader_wait_beyond_the_budget_and_none_is_lost(
    quick: Callable[..., Settings], foreign: Callable[..., str], wait_until: Any
) -> None:
    """They need no credit: 16 calls bring 29 MB at once."""
    cap = foreign()
    async with Engine(quick(wire={"backlog_bytes": 1 << 20})) as engine:
        await engine.load(cap, timeout_s=30)
        calls = [engine.call(cap, {"how": "many outputs"}, timeout_s=60) for _ in range(16)]
        for call in calls:
            await call.__aenter__()
        await wait_until(lambda: all(call.is_answered for call in calls), limit_s=30.0)
        assert engine.backlog.used_bytes <= 1 << 20
        assert engine.backlog.stored_bytes > 16 << 20
        for call in calls:
            found = [event async for event in call if isinstance(event, Data)]
            assert [(event.output, event.value) for event in found] == [
                (f"out-{number}", bytes((number,)) * 60_000) for number in range(30)
            ]
        assert (engine.backlog.used_bytes, engine.backlog.stored_bytes) == (0, 0)


async def test_a_stall_in_a_peer_ends_the_call_that_waits_for_it_and_no_process(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any
) -> None:
    """Keepalives come from the peer's process all the time: alive, and not advancing."""
    async with Engine(
        quick(call={"stall_s": 0.5, "silence_s": 10.0, "cancel_s": 5.0, "abandon_s": 10.0}, health={"keepalive_s": 0.1})
    ) as engine:
        arguments = {"cap": "cap:stay", "argument": "", "arguments": {"phase": "loading"}}
        error = await failure_of(engine.run("relay", arguments))
        assert error.code is Code.STALLED
        sessions = engine.pool.sessions
        await wait_until(lambda: not any(one.open_requests for one in sessions))
        assert engine.pool.sessions == sessions


async def test_a_flood_of_log_holds_up_nobody_and_costs_no_memory(quick: Callable[..., Settings]) -> None:
    async with Engine(quick()) as engine:
        await engine.load("phases", timeout_s=30)
        await engine.run("misbehave", {"action": "print"}, timeout_s=30)
        before = resident_bytes()
        floods = [
            asyncio.create_task(engine.run("misbehave", {"action": f"flood-{where}", "amount": 32 << 20}, timeout_s=60))
            for where in ("stderr", "stdout")
        ]
        while not all(flood.done() for flood in floods):
            async with asyncio.timeout(30):
                await engine.run("stay", {"phase": "loading", "seconds": 0})
        await asyncio.gather(*floods)
        assert resident_bytes() - before < 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("held", ["hold-gil", "hold-loop", "stopped"])
async def test_a_close_ends_a_process_that_cannot_hear_it(
    quick: Callable[..., Settings], failure_of: Any, wait_until: Any, held: str
) -> None:
    loop = asyncio.get_running_loop()
    async with Engine(quick()) as engine:
        await engine.run("echo", {"data": b""}, timeout_s=30)
        [session] = engine.pool.sessions
        assert session.process is not None
        if held == "stopped":
            os.kill(session.process.pid, signal.SIGSTOP)
        action = {"action": "stall" if held == "stopped" else held, "seconds": 60}
        call = asyncio.create_task(engine.run("misbehave", action))
        await wait_until(lambda: session.open_requests == 1)
        began = loop.time()
    assert loop.time() - began < 10.0  # its stop ladder takes two seconds
    assert (await failure_of(call)).code is Code.ABORTED
