"""A cartridge for tests: it stays in one phase of work until it is told to stop."""

import asyncio
import builtins
import time

from cartdeck_sdk import Cartridge, Output, Report, Request, WorkerOutput

cartridge = Cartridge("phases")


class Sudden(BaseException):
    """No Exception, as some libraries raise it."""


def exception(kind: str) -> BaseException:
    found: type[BaseException] = Sudden if kind == "Sudden" else getattr(builtins, kind)
    return found(3) if found is SystemExit else found("raised on request")


@cartridge.handles("raise-here", needs=("kind",))
async def raise_here(request: Request, _output: Output) -> None:
    raise exception(request["kind"])


@cartridge.handles("raise-in-worker", needs=("kind",))
def raise_in_worker(request: Request, _output: WorkerOutput) -> None:
    raise exception(request["kind"])


@cartridge.handles("compute", needs=("count", "native"))
async def compute(request: Request, output: Output) -> None:
    count = request["count"]

    def add(_report: Report) -> int:
        if request["native"]:
            return sum(range(count))
        total = 0
        for number in range(count):
            total += number
        return total

    await output.write(str(await output.run_with_keepalive(0.0, "adding", add, phase="adding")))


@cartridge.handles("stay", needs=("phase", "seconds"))
async def stay(request: Request, output: Output) -> None:
    phase, end = request["phase"], time.monotonic() + request["seconds"]
    output.progress(0.0, "here", phase=phase)

    def load(_report: Report) -> None:
        # the held one is a library that cannot be asked to stop
        while time.monotonic() < end and (phase == "held-loading" or not request.is_cancelled):
            time.sleep(0.01)

    writer = WorkerOutput(asyncio.get_running_loop(), output)

    def decode() -> None:
        while time.monotonic() < end:
            request.raise_if_cancelled()
            writer.write(b"x" * 1000)
            time.sleep(0.001)

    if phase == "obtaining":
        await request.peer.call("cap:misbehave", {"action": "stall"}).collect(forward_progress=(0.0, 0.25))
    elif phase.endswith("loading"):
        await output.run_with_keepalive(0.25, "loading", load, phase=phase)
        await output.write("loaded")
    elif phase == "decoding-in-worker":
        await asyncio.to_thread(decode)
    else:
        while time.monotonic() < end:
            await output.write(b"x" * (300_000 if phase == "full" else 1000))
            await asyncio.sleep(0.001)
