"""The host killed in whatever it does: no cartridge lives 5 s later. And what a cartridge started goes with it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Code, Engine, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left", "phases")]

LIMIT_S = 20.0
"""The promise is five seconds; a slow or loaded machine gets more."""

HOST = """
import asyncio, contextlib, itertools, json, os, sys
from pathlib import Path
import cartdeck
from cartdeck.settings import parse_settings

def tell():
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            children += map(int, (task / "children").read_text().split())
    print(json.dumps(children), flush=True)

async def begin(engine, cap, arguments, *, is_read):
    call = await engine.call(cap, arguments, keep_bytes=0).__aenter__()
    async for event in call:
        if isinstance(event, cartdeck.Data) or getattr(event, "phase", "") == arguments.get("phase"):
            break
    return [event async for event in call] if is_read else call

async def main(state, folder):
    settings = parse_settings({"cartridge_folders": [folder]}, origin="test")
    async with cartdeck.Engine(settings) as engine:
        open_calls = set()
        def start(work):
            open_calls.add(asyncio.create_task(work))
        if state == "starting":
            for number in range(3):
                start(engine.run("stay", {"phase": "loading"}))
                start(engine.run("echo", {"data": b""}))
            await asyncio.sleep(0)
            while not engine.pool.sessions or engine.pool.sessions[0].process is None:
                await asyncio.sleep(0)
        elif state == "loading":
            await begin(engine, "stay", {"phase": "held-loading"}, is_read=False)
        elif state == "streaming":
            start(begin(engine, "emit", {"count": 10_000_000, "size": 1000}, is_read=True))
            await asyncio.sleep(0.2)
            await engine.run("echo", {"data": b""})
        elif state == "not read":
            call = await begin(engine, "emit", {"count": 10_000_000}, is_read=False)
            while call.reader_since_s(engine.clock.now_s) is None:
                await asyncio.sleep(0.01)
        elif state == "writing":
            await engine.load("echo")
            start(engine.run("misbehave", {"action": "hold-loop", "seconds": 60}))
            start(engine.run("sink", {"data": itertools.repeat(b"x" * 262_144)}))
            start(engine.run("echo", {"data": itertools.repeat(b"x" * 262_144)}))
            while not engine.pool.sessions[0].is_blocked:
                await asyncio.sleep(0.01)
        elif state == "peers":
            inner = {"cap": "cap:stay", "argument": "", "arguments": {"phase": "held-loading"}}
            call = await engine.call("relay", inner).__aenter__()
            async for event in call:
                if getattr(event, "phase", "") == "held-loading":
                    break
        elif state == "foreign":
            await engine.run("cap:answer", {"data": "x"})
            start(engine.run("cap:answer", {"how": "stop reading"}))
            await asyncio.sleep(0.1)
        tell()
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("state", ["starting", "loading", "streaming", "not read", "writing", "peers", "foreign"])
async def test_no_cartridge_lives_on_after_its_host_was_killed(
    state: str, foreign: Callable[..., str], tmp_path: Path, runs: Callable[[int], bool], wait_until: Any
) -> None:
    foreign()
    async with killed_host(state, tmp_path / "cartridges") as children:
        assert children
    await wait_until(lambda: not any(map(runs, children)), limit_s=LIMIT_S)


@asynccontextmanager
async def killed_host(state: str, folder: Path) -> AsyncIterator[list[int]]:
    """The children of a host that came into the state, and is killed at the end."""
    host = subprocess.Popen(  # noqa: ASYNC220  # a host that is to be killed
        [sys.executable, "-c", HOST, state, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    with host, host.stdout:
        try:
            async with asyncio.timeout(60):
                yield json.loads(await asyncio.to_thread(host.stdout.readline))
        finally:
            host.kill()


# -- grandchildren, while the host lives


@pytest.mark.parametrize("end", ["unload", "death", "hang"])
async def test_a_grandchild_that_left_the_group_goes_with_its_cartridge(
    quick: Callable[..., Settings],
    foreign: Callable[..., str],
    runs: Callable[[int], bool],
    wait_until: Any,
    failure_of: Any,
    end: str,
) -> None:
    cap = foreign()
    async with Engine(quick(call={"silence_s": 1.0 if end == "hang" else 20.0})) as engine:
        grandchild = int((await engine.run(cap, {"how": "grandchild"}, timeout_s=30)).text)
        assert runs(grandchild)
        [session] = engine.pool.sessions
        assert session.process is not None
        if end == "unload":
            assert await engine.unload("foreign") == 1
            assert not runs(grandchild)
        elif end == "death":
            call = asyncio.create_task(engine.run(cap, {"how": "ignore cancel"}))
            await wait_until(lambda: session.open_requests == 1)
            os.kill(session.process.pid, signal.SIGKILL)
            # the grandchild holds both frame pipes: the news does not wait for their end
            assert (await failure_of(call, limit_s=10.0)).code is Code.CARTRIDGE_DIED
        else:
            error = await failure_of(engine.run(cap, {"how": "stop reading"}))
            assert error.code is Code.TIMED_OUT
        await wait_until(lambda: not runs(grandchild), limit_s=LIMIT_S)


async def test_a_cartridge_inherits_nothing_that_its_host_has_mapped_or_set_up(quick: Callable[..., Settings]) -> None:
    """A device library's context does not survive a fork: a cartridge is a fresh program. A shared mapping that a
    forked process would have stands for that context."""
    with mmap(-1, 1 << 20) as shared:  # anonymous and shared: only a fork hands it on
        shared.write(b"a context")
        async with Engine(quick()) as engine:
            await engine.run("echo", {"data": b""})
            [process] = [session.process for session in engine.pool.sessions]
            assert process is not None
            assert "/dev/zero" in mappings(os.getpid())
            assert "/dev/zero" not in mappings(process.pid)


def mappings(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
