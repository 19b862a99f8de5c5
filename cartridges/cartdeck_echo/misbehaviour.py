"""Owns the harmful things that the echo cartridge does on request.

It does not know how a host takes them; tests of a host do.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cartdeck_sdk import Output, Request, WorkerOutput

Action = Callable[[Request, Output], Awaitable[str]]

_kept: list[bytes] = []
_LINE: Final = b"flood " * 170 + b"\n"
_THREADS: Final = 4
_BLOCK: Final = b"\7" * 65_536


async def misbehave(request: Request, output: Output) -> None:
    """Do what `action` names, and say what was done."""
    await output.write(await _ACTIONS[request["action"]](request, output))


async def _print(_request: Request, _output: Output) -> str:
    os.write(1, b"os.write on fd 1\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"puts from C")
    libc.fflush(None)
    print("print from Python")
    subprocess.run(["echo", "echo from a child"], check=True)  # noqa: ASYNC221  # holding the loop is the point
    return "printed"


async def _flood(request: Request, descriptor: int) -> str:
    left = request["amount"]
    while left > 0:
        left -= os.write(descriptor, _LINE[:left])
    return f"wrote {request['amount']} bytes to fd {descriptor}"


async def _flood_stderr(request: Request, _output: Output) -> str:
    return await _flood(request, 2)


async def _flood_stdout(request: Request, _output: Output) -> str:
    return await _flood(request, 1)


async def _stall(_request: Request, output: Output) -> str:
    output.progress(0.1, "about to stall", phase="stalling")
    await asyncio.Event().wait()
    return "never"


async def _hold_loop(request: Request, _output: Output) -> str:
    time.sleep(request["seconds"])  # noqa: ASYNC251  # holding the loop is the point
    return "held the loop"


async def _hold_gil(request: Request, _output: Output) -> str:
    # PyDLL keeps the interpreter's lock during the call: no thread of this process runs
    ctypes.PyDLL(None).usleep(int(request["seconds"] * 1_000_000))
    return "held the interpreter"


async def _exit(request: Request, output: Output) -> str:
    await output.write("last words")
    await asyncio.sleep(0)
    os._exit(request["amount"])


async def _signal(request: Request, output: Output) -> str:
    await output.write("last words")
    print("about to be killed", file=sys.stderr, flush=True)
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), request["amount"])
    await asyncio.sleep(5)
    return "survived"


async def _exit_on_signal(request: Request, _output: Output) -> str:
    # asked from outside, so that the exit meets the process in whatever it does then
    def leave(_number: int, _frame: object) -> None:
        os._exit(request["amount"])

    signal.signal(signal.SIGUSR1, leave)
    return f"exits with {request['amount']} on SIGUSR1"


async def _emit_from_threads(request: Request, output: Output) -> str:
    writer = WorkerOutput(asyncio.get_running_loop(), output)

    def emit() -> None:
        for _ in range(request["amount"]):
            writer.write(_BLOCK)

    await asyncio.gather(*(asyncio.to_thread(emit) for _ in range(_THREADS)))
    return "wrote from threads"


async def _raise(_request: Request, _output: Output) -> str:
    raise ValueError("raised on request")


async def _system_exit(request: Request, _output: Output) -> str:
    raise SystemExit(request["amount"])


async def _leak(request: Request, _output: Output) -> str:
    _kept.append(b"\1" * request["amount"])
    return f"keeps {sum(map(len, _kept))} bytes"


async def _grandchild(_request: Request, _output: Output) -> str:
    child = subprocess.Popen(  # noqa: ASYNC220  # holding the loop is the point
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    return str(child.pid)


async def _ignore_cancel(request: Request, output: Output) -> str:
    output.progress(0.1, "ignoring cancels")
    end = time.monotonic() + request["seconds"]
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except asyncio.CancelledError:
            continue
    return "finished all the same"


async def _descriptors(_request: Request, _output: Output) -> str:
    first, second = os.fstat(1), os.fstat(2)
    return "same" if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino) else "different"


async def _log_lines(request: Request, output: Output) -> str:
    for number in range(request["amount"]):
        output.log("info", f"line {number}")
    return "logged"


_ACTIONS: Final[dict[str, Action]] = {
    "print": _print,
    "flood-stderr": _flood_stderr,
    "flood-stdout": _flood_stdout,
    "stall": _stall,
    "hold-loop": _hold_loop,
    "hold-gil": _hold_gil,
    "exit": _exit,
    "exit-on-signal": _exit_on_signal,
    "emit-from-threads": _emit_from_threads,
    "signal": _signal,
    "raise": _raise,
    "system-exit": _system_exit,
    "leak": _leak,
    "grandchild": _grandchild,
    "ignore-cancel": _ignore_cancel,
    "descriptors": _descriptors,
    "log-lines": _log_lines,
}
