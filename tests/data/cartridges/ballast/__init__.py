"""A cartridge for tests: it holds memory, or says that it will."""

import asyncio
import json
import os
import resource
import time
from dataclasses import asdict
from pathlib import Path

from cartdeck_modelkit.phases import LoadReport, run_load
from cartdeck_modelkit.reservation import Reservation, reserve_memory
from cartdeck_protocol.errors import CartdeckError
from cartdeck_sdk import Cartridge, Output, Request

cartridge = Cartridge("ballast")

_held: list[bytes] = []
_loads = 0


@cartridge.handles("carry", needs=("item", "reserve", "hold", "rival", "gate", "word", "peer"))
async def carry(request: Request, output: Output) -> None:
    grant = None
    if not _held:
        grant = await _load(request, output)
    output.progress(0.5, "carrying", phase="inference")
    await asyncio.to_thread(_wait_at_gate, request)
    if request["peer"]:
        await request.peer.call("cap:carry", request["peer"]).collect(forward_progress=(0.5, 0.9))
    record = {"item": request["item"], "pid": os.getpid(), "loads": _loads, "word": request["word"]}
    await output.write(json.dumps({**record, "grant": None if grant is None else asdict(grant)}))


def _wait_at_gate(request: Request) -> None:
    gate = request["gate"]
    while gate and not Path(gate).exists():
        request.raise_if_cancelled()
        time.sleep(0.005)


@cartridge.handles("waver", needs=("item", "times", "withdraws", "gate"))
async def waver(request: Request, output: Output) -> None:
    calls = [request.peer.call("cap:reserve-memory", {"bytes": request["reserve"]}) for _ in range(request["times"])]
    if request["withdraws"]:
        for call in calls:
            call.cancel("second thoughts")
    answers = await asyncio.gather(*(call.collect() for call in calls), return_exceptions=True)
    output.progress(0.5, "asked", phase="inference")
    await asyncio.to_thread(_wait_at_gate, request)
    told = [one.code_name if isinstance(one, CartdeckError) else json.loads(one.data) for one in answers]
    await output.write(json.dumps(told))


async def _load(request: Request, output: Output) -> Reservation | None:
    grant = await reserve_memory(request, request["reserve"]) if request["reserve"] >= 0 else None
    size, rival = request["hold"], request["rival"]

    def load(_report: LoadReport) -> bytes:
        global _loads  # noqa: PLW0603  # one process, one load
        _loads += 1
        if not rival or not Path(f"/proc/{rival}").exists():
            return b"\1" * size
        limits = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size // 2, limits[1]))
        try:
            return b"\1" * size  # which the system refuses; above 64 MiB, which the allocator may have in reserve
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    _held.append(await run_load(output, request["item"], size, load))
    return grant
