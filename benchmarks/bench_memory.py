"""What the host holds: a slow reader of much, many slow readers at once, many calls, many starts.

    python benchmarks/bench_memory.py [--json] [--quick] [--only SCENARIO,SCENARIO,slow_readers_*]

One JSON line per figure with --json ({"peer", "figure", "value", "unit"}, and "must" where there is a bound). Ends with
1 when a bound is missed. Each scenario has a process of its own. Memory is the resident set (/proc/self/statm), looked
at every 20 ms while a scenario runs; it grows from a baseline that is taken when everything was used once, garbage was
collected and the allocator gave back what it had free. --quick does a tenth of the work.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Final

from cartdeck import Data, Engine
from cartdeck.settings import parse_settings
from cartdeck_protocol.caps import build_manifest

HERE: Final = Path(__file__).parent
MIB: Final = 1024 * 1024
PAGE: Final = resource.getpagesize()
LIMIT_S: Final = 1800
READERS: Final = 60
OUTPUTS: Final = 40
SLOW_S: Final = 0.05
"""A slow reader's pause between two events."""


# -- looking


def settle() -> None:
    """Collect what is garbage, and let the allocator give back what it keeps free."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE


@dataclass
class Rise:
    """How far the resident set rose above where it was."""

    begun: int = 0
    highest: int = 0

    @property
    def mib(self) -> float:
        return (self.highest - self.begun) / MIB


@asynccontextmanager
async def rising() -> AsyncIterator[Rise]:
    settle()
    rise = Rise(rss_bytes())
    rise.highest = rise.begun

    async def look() -> None:
        while True:
            rise.highest = max(rise.highest, rss_bytes())
            await asyncio.sleep(0.02)

    looker = asyncio.create_task(look())
    try:
        yield rise
    finally:
        rise.highest = max(rise.highest, rss_bytes())
        looker.cancel()


def emit(figure: str, value: float, unit: str, must: float | None = None) -> bool:
    """Print a figure. Whether it is within its bound."""
    line: dict[str, Any] = {"peer": "cartdeck", "figure": figure, "value": round(value, 3), "unit": unit}
    if must is not None:
        line["must"] = f"<= {must:g}"
    print(json.dumps(line), flush=True)
    return must is None or value <= must


# -- readers


async def read_slowly(
    engine: Engine, cap: str, arguments: dict[str, Any], *, hurry: asyncio.Event, is_left: bool
) -> int:
    """Take a call's events with a pause after each batch until `hurry`, then leave it or take the rest; the bytes."""
    total = 0
    async with engine.call(cap, arguments) as call:
        while events := await call.next_events():
            for event in events:
                if isinstance(event, Data):
                    total += len(event.value)
            if not hurry.is_set():
                await asyncio.sleep(SLOW_S)
            elif is_left:
                break
    return total


async def many_readers(
    engine: Engine, cap: str, arguments: dict[str, Any], *, expected: int | None, seconds: float
) -> tuple[float, float]:
    """MiB that the host grew by while all of them read slowly, and once all had read to the end."""
    hurry, is_left = asyncio.Event(), expected is None
    async with rising() as rise:
        reading = (read_slowly(engine, cap, arguments, hurry=hurry, is_left=is_left) for _ in range(READERS))
        readers = [asyncio.create_task(one) for one in reading]
        await asyncio.sleep(seconds)
        slow_mib = (max(rise.highest, rss_bytes()) - rise.begun) / MIB
        hurry.set()
        totals = await asyncio.gather(*readers)
        assert is_left or set(totals) == {expected}, f"{sorted(set(totals))} bytes came, {expected} were sent"
    return slow_mib, rise.mib


# -- scenarios: each says whether its bounds hold


async def slow_reader(engine: Engine, quick: bool) -> bool:
    """10 GiB to one reader that pauses now and then."""
    size = (1 if quick else 10) * 1024 * MIB
    await engine.run("emit", {"count": 4})
    total = seen = 0
    async with rising() as rise, engine.call("emit", {"count": size // 262_144}) as call:
        async for event in call:
            if isinstance(event, Data):
                total += len(event.value)
                if total - seen >= size // 64:
                    seen = total
                    await asyncio.sleep(SLOW_S)
    assert total == size
    return emit("slow_reader_rss_growth", rise.mib, "MiB", 16)


LARGE: Final = 262_144
KINDS: Final[dict[str, tuple[str, dict[str, Any], int | None]]] = {
    "bytes": ("emit", {"count": 200}, 200 * LARGE),
    "small_chunks": ("emit-items", {"count": 10_000, "merged": False}, 10_000 * 16),
    "items": ("emit-items", {"count": 100_000}, 100_000 * 16),
    "tiny_items": ("emit-items", {"count": 300_000, "size": 1}, None),
    "relayed": ("relay", {"cap": "cap:emit", "argument": "", "arguments": {"count": 100}}, 100 * LARGE),
    "whole_outputs": ("outputs", {"count": OUTPUTS, "form": "whole"}, OUTPUTS * LARGE),
    "many_outputs": ("outputs", {"count": 8, "form": "chunks"}, 8 * 8 * LARGE),
    "item_outputs": ("outputs", {"count": 8, "form": "items"}, None),
}
"""A cap, its arguments, and the bytes that come; None where they are so many items that the readers leave early."""


async def slow_readers(engine: Engine, quick: bool, *, kind: str) -> bool:
    """60 readers at once, of one kind of output."""
    cap, arguments, expected = KINDS[kind]
    if quick and kind in ("bytes", "small_chunks", "items"):  # reading them to the end takes longest
        arguments, expected = {**arguments, "count": arguments["count"] // 5}, (expected or 0) // 5
    async with engine.call(cap, arguments) as call:  # what is needed for it is there from now on
        await call.next_events()
    slow_mib, mib = await many_readers(engine, cap, arguments, expected=expected, seconds=1.5 if quick else 6.0)
    emit(f"slow_readers_{kind}_rss_growth_to_the_end", mib, "MiB")
    return emit(f"slow_readers_{kind}_rss_growth", slow_mib, "MiB", 96)


def counts() -> dict[str, int]:
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


async def repeated(name: str, work: Callable[[], Awaitable[None]], *, most_mib: float) -> bool:
    """`work`, and what there is of everything afterwards beyond what there was before."""
    settle()
    before, begun = counts(), rss_bytes()
    await work()
    await asyncio.sleep(0.2)
    settle()
    grown = rss_bytes() - begun
    is_well = emit(f"{name}_rss_growth", grown / MIB, "MiB", most_mib)
    for what, count in counts().items():
        is_well &= emit(f"{name}_more_{what}", count - before[what], what, 0)
    return is_well


async def calls(engine: Engine, quick: bool) -> bool:
    """100,000 calls, 64 at a time."""

    async def some(count: int) -> None:
        async def one() -> None:
            for _ in range(count // 64):
                assert (await engine.run("echo", {"data": b"x" * 64})).data == b"x" * 64

        await asyncio.gather(*(one() for _ in range(64)))

    await some(6_400)
    return await repeated("calls", lambda: some(10_000 if quick else 100_000), most_mib=2)


async def starts(engine: Engine, quick: bool) -> bool:
    """1,000 starts and stops of echo."""

    async def some(count: int) -> None:
        for _ in range(count):
            assert (await engine.run("echo", {"data": b"x"})).data == b"x"
            assert await engine.unload("echo") == 1

    await some(20)
    return await repeated("starts", lambda: some(50 if quick else 1_000), most_mib=4)


SCENARIOS: Final[dict[str, Callable[[Engine, bool], Awaitable[bool]]]] = {
    "slow_reader": slow_reader,
    **{f"slow_readers_{kind}": partial(slow_readers, kind=kind) for kind in KINDS},
    "calls": calls,
    "starts": starts,
}


# -- processes


def declare_outputs(place: Path) -> None:
    """The cartridge of `outputs/`, declared as one from elsewhere."""
    source = HERE / "outputs"
    folder = place / "outputs"
    folder.mkdir()
    manifest = build_manifest(
        (source / "manifest.toml").read_text("utf-8"),
        lambda alias: path.read_text("utf-8") if (path := source / f"{alias}.toml").exists() else None,
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    (folder / "program.py").write_bytes((source / "program.py").read_bytes())
    command = f'command = ["{sys.executable}", "{{folder}}/program.py"]\nmanifest = "manifest.json"\n'
    (folder / "cartridge.toml").write_text(command, "utf-8")


async def run(name: str, *, quick: bool) -> bool:
    with tempfile.TemporaryDirectory() as place:
        declare_outputs(Path(place))
        async with Engine(parse_settings({"cartridge_folders": [place]}, origin="bench_memory")) as engine:
            return await SCENARIOS[name](engine, quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", default="", help=f"with commas between, * for any: {', '.join(SCENARIOS)}")
    parser.add_argument("--scenario", choices=SCENARIOS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scenario:
        raise SystemExit(0 if asyncio.run(run(options.scenario, quick=options.quick)) else 1)
    is_well = True
    for name in SCENARIOS:
        if options.only and not any(fnmatch(name, pattern) for pattern in options.only.split(",")):
            continue
        command = [sys.executable, __file__, "--scenario", name, *(["--quick"] if options.quick else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if options.json:
                    print(line, end="", flush=True)
                else:
                    found = json.loads(line)
                    must = f"  must be {found['must']}" if "must" in found else ""
                    print(f"{found['figure']:52} {found['value']:>10,.2f} {found['unit']}{must}", flush=True)
            is_well &= process.wait(LIMIT_S) == 0
    raise SystemExit(0 if is_well else 1)


if __name__ == "__main__":
    main()
