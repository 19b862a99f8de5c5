"""A child process: its pipes, its exit, and its end with everything it started."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck.environment import child_environment, new_session_mark
from cartdeck.sessions.log_ring import LogRing
from cartdeck.sessions.process import Process, spawn, tied_to_host
from cartdeck.settings import StopSettings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

QUICK = StopSettings(close_s=0.2, term_s=0.2, kill_s=1.0)
PATIENT = StopSettings(close_s=20.0, term_s=0.2, kill_s=1.0)
"""For a program that leaves by itself: it has to start before it can."""
WAIT_FOR_END = "import sys; sys.stdin.buffer.read()"


def start(program: str, *, command: list[str] | None = None, log: LogRing | None = None) -> Process:
    environment = child_environment(mark=new_session_mark(), may_use_network=False, durations={})
    log = log or LogRing(ring_bytes=64 * 1024, line_bytes=1024)
    return spawn(command or [sys.executable, "-c", program], environment=environment, log=log, pipe_bytes=1 << 20)


async def end(process: Process, *, is_urgent: bool = False, steps: StopSettings = QUICK) -> float:
    """Close the pipes and stop; seconds it took."""
    began = time.monotonic()
    os.close(process.pipes.write)
    await process.stop(steps, is_urgent=is_urgent)
    os.close(process.pipes.read)
    return time.monotonic() - began


async def test_a_process_that_leaves_when_its_stdin_closes_needs_no_signal() -> None:
    process = start(WAIT_FOR_END)
    assert await end(process, steps=PATIENT) < PATIENT.close_s
    assert process.returncode == 0
    assert process.exit_text == "exited with status 0"


async def test_one_that_does_not_is_terminated_and_then_killed(wait_until: Callable[..., Any]) -> None:
    process = start("import time; time.sleep(600)")
    await end(process)
    assert process.exit_text == "was killed by SIGTERM"
    stubborn = start(
        "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('x', file=sys.stderr); time.sleep(600)"
    )
    await wait_until(lambda: stubborn.log.total_bytes)
    took_s = await end(stubborn)
    assert stubborn.exit_text == "was killed by SIGKILL"
    assert took_s < QUICK.close_s + QUICK.term_s + 10.0


async def test_a_stopped_process_ends_too(wait_until: Callable[..., Any]) -> None:
    process = start("import time; time.sleep(600)")
    os.kill(process.pid, signal.SIGSTOP)
    await end(process)
    assert not process.is_running


async def test_a_grandchild_goes_with_its_group_and_one_that_left_the_group_by_its_mark(
    runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "near = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "far = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(near.pid, far.pid, file=sys.stderr, flush=True)\n"
        "sys.stdin.buffer.read()\n"
    )
    process = start(program)
    await wait_until(
        lambda: process.log.tail(1) and process.log.total_bytes and len(process.log.tail(1)[0].split()) == 2
    )
    near, far = map(int, process.log.tail(1)[0].split())
    assert runs(near)
    assert runs(far)
    await end(process)
    await wait_until(lambda: not runs(near) and not runs(far))


async def test_an_exit_is_seen_at_once_though_a_grandchild_holds_the_pipes() -> None:
    seen = asyncio.Event()
    process = start(
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "sys.stdin.buffer.readline(); os._exit(7)\n"
    )
    process.on_exit = seen.set
    os.write(process.pipes.write, b"go\n")
    async with asyncio.timeout(20):
        await seen.wait()
    assert process.returncode == 7
    await end(process, is_urgent=True)


async def test_a_megabyte_on_stderr_holds_nobody_up(wait_until: Callable[..., Any]) -> None:
    log = LogRing(ring_bytes=64 * 1024, line_bytes=1024)
    process = start("import os; n = 1 << 20\nwhile n: n -= os.write(2, b'x' * min(n, 65536))", log=log)
    async with asyncio.timeout(20):
        await process.exited.wait()
    await end(process)
    assert log.total_bytes == 1 << 20
    assert log.dropped_bytes > 900_000


async def test_a_command_that_no_system_takes_is_a_typed_error_and_leaves_no_descriptor() -> None:
    with pytest.raises(CartdeckError, match="cannot be started: embedded null byte") as caught:
        start("", command=[sys.executable, "-c", "nul\0byte"])
    assert caught.value.code is Code.START_FAILED


async def test_a_program_that_is_not_there_is_a_typed_error_and_leaves_no_descriptor() -> None:
    with pytest.raises(CartdeckError, match="no-such-program cannot be started: No such file") as caught:
        start("", command=["/no-such-program"])
    assert caught.value.code is Code.START_FAILED


async def test_a_stop_that_is_cancelled_goes_on(wait_until: Callable[..., Any]) -> None:
    process = start("import time; time.sleep(600)")
    os.close(process.pipes.write)
    stopping = asyncio.create_task(process.stop(QUICK))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await process.stop(QUICK)
    assert not process.is_running
    os.close(process.pipes.read)


async def test_a_child_has_a_group_of_its_own() -> None:
    process = start(WAIT_FOR_END)
    assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    assert os.getsid(process.pid) == process.pid
    await end(process)


async def test_cpu_time_is_told(wait_until: Callable[..., Any]) -> None:
    process = start("import sys\nfor _ in range(20_000_000): pass\nsys.stdin.read()")
    await wait_until(lambda: process.cpu_s() > 0.1)
    await end(process, is_urgent=True)


async def test_the_exit_is_seen_without_a_pidfd_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = start(WAIT_FOR_END)
    await end(process, steps=PATIENT)
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
async def test_a_foreign_command_dies_with_its_host(
    tmp_path: Path, runs: Callable[[int], bool], wait_until: Any
) -> None:
    pid_file = tmp_path / "pid"
    foreign = tied_to_host(["sh", "-c", f"echo $$ > '{pid_file}'; exec sleep 600"])
    host = subprocess.Popen(  # noqa: ASYNC220  # a host that is to be killed
        [sys.executable, "-c", f"import subprocess, time; subprocess.Popen({foreign!r}); time.sleep(600)"]
    )
    await wait_until(lambda: pid_file.exists() and pid_file.read_text("ascii").strip())
    pid = int(pid_file.read_text("ascii"))
    assert runs(pid)
    host.kill()
    host.wait()
    await wait_until(lambda: not runs(pid))
