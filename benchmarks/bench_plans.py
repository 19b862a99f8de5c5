"""Plans beside the same calls made by hand: overhead of a step, a map, memory of a stream, the compiler, two at once.

    python benchmarks/bench_plans.py [--json] [--quick] [--rounds N]

One JSON line per figure with --json ({"peer", "figure", "value", "unit", "min", "max"}), the median over the rounds;
`ratio` lines compare a plan with its calls by hand in the same round, and `must` says what has to hold. All on the echo
cartridge. --quick runs fewer rounds and streams less, in under a minute.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import cartdeck
from cartdeck.discovery import discover
from cartdeck.plans import Plan, PlanRun, compile_plan, run_plan
from cartdeck.router import Router

CHAIN: Final = 500
MAP: Final = 10_000
AT_ONCE: Final = 64
BLOCK: Final = 256 * 1024
GIB: Final = 1024**3
MIB: Final = 1024**2
SAMPLE_S: Final = 0.02

# figure: the bound, and whether the value must be below or above it
MUST: Final = {
    "step / by hand": ("<=", 1.2),
    "map / by hand": (">=", 0.8),
    "stream_rss": ("<", 64.0),
    "compile_1000": ("<", 0.5),
    "two_at_once": ("<", 1.2),
}


class Figures:
    """Values by peer and figure, over the rounds. `must` has the bounds of some figures: ("<", 1.2)."""

    def __init__(self, must: Mapping[str, tuple[str, float]]) -> None:
        self._must = must
        self._values: dict[tuple[str, str], list[float]] = {}
        self._units: dict[tuple[str, str], str] = {}

    def add(self, peer: str, figure: str, value: float, unit: str) -> None:
        self._values.setdefault((peer, figure), []).append(value)
        self._units[peer, figure] = unit

    def lines(self) -> Iterator[dict[str, Any]]:
        for (peer, figure), values in self._values.items():
            line: dict[str, Any] = {
                "peer": peer,
                "figure": figure,
                "value": round(statistics.median(values), 4),
                "unit": self._units[peer, figure],
                "min": round(min(values), 4),
                "max": round(max(values), 4),
            }
            if figure in self._must:
                sense, bound = self._must[figure]
                line |= {"best": min(values) if sense[0] == "<" else max(values), "must": f"{sense} {bound:g}"}
            yield line


def chain_text(count: int) -> str:
    return "\n".join(f"s{i} cap:echo;test\nv{i} -> s{i} -> v{i + 1}" for i in range(count))


def measure_compiler(figures: Figures) -> None:
    settings = cartdeck.load_settings()
    router = Router(discover(settings).cartridges, settings.prefer)
    text = chain_text(1000)
    begun = time.perf_counter()
    compile_plan(Plan.parse(text), router)
    figures.add("plan", "compile_1000", time.perf_counter() - begun, "s")


async def measure_steps(engine: cartdeck.Engine, figures: Figures) -> None:
    plan = compile_plan(Plan.parse(chain_text(CHAIN)), engine.router)  # which has a figure of its own
    begun = time.perf_counter()
    data = b"x"
    for _ in range(CHAIN):
        data = (await engine.run("cap:echo;test", {"data": data})).data
    by_hand_s = (time.perf_counter() - begun) / CHAIN
    begun = time.perf_counter()
    assert (await run_plan(engine, plan, {"v0": b"x"})).only.data == data
    step_s = (time.perf_counter() - begun) / CHAIN
    figures.add("by_hand", "step_us", by_hand_s * 1e6, "us")
    figures.add("plan", "step_us", step_s * 1e6, "us")
    figures.add("ratio", "step / by hand", step_s / by_hand_s, "x")


async def measure_map(engine: cartdeck.Engine, figures: Figures) -> None:
    items = [b"x"] * MAP
    left = iter(items)

    async def work() -> None:
        for item in left:
            await engine.run("cap:echo;test", {"data": item})

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    by_hand = MAP / (time.perf_counter() - begun)
    begun = time.perf_counter()
    assert (await run_plan(engine, "x -> s -> y\ns cap:echo;test", {"x": items})).only.items == items
    mapped = MAP / (time.perf_counter() - begun)
    figures.add("by_hand", "calls_per_s", by_hand, "1/s")
    figures.add("plan", "items_per_s", mapped, "1/s")
    figures.add("ratio", "map / by hand", mapped / by_hand, "x")


async def measure_stream(engine: cartdeck.Engine, figures: Figures, size_bytes: int) -> None:
    text = (
        "() -> emit -> a\na -> one -> b\none cap:echo;test\nb -> two -> c\ntwo cap:echo;test\nc -> sink -> d\n"
        f"emit.count = {size_bytes // BLOCK}\nemit.size = {BLOCK}"
    )
    before = highest = rss_mib()
    begun = time.perf_counter()
    async with PlanRun(engine, text) as run:
        done = asyncio.ensure_future(run.collect())
        while not done.done():
            highest = max(highest, rss_mib())
            await asyncio.wait([done], timeout=SAMPLE_S)
        assert done.result().only.json()["bytes"] == size_bytes
    figures.add("plan", "stream_MBps", size_bytes / 1e6 / (time.perf_counter() - begun), "MB/s")
    figures.add("plan", "stream_rss", highest - before, "MiB")


async def measure_two(engine: cartdeck.Engine, figures: Figures) -> None:
    begun = time.perf_counter()
    await run_plan(engine, "() -> one -> a\none work\n() -> two -> b\ntwo work")  # each works for one second
    figures.add("plan", "two_at_once", time.perf_counter() - begun, "s")


def rss_mib() -> float:
    fields = Path("/proc/self/statm").read_text("ascii").split()
    return int(fields[1]) * 4096 / MIB


async def measure(figures: Figures, *, rounds: int, stream_bytes: int) -> None:
    async with cartdeck.Engine() as engine:
        await engine.run("cap:echo;test", {"data": b"x"})
        await run_plan(engine, "x -> s -> y\ns cap:echo;test", {"x": [b"x"] * 500})
        for _ in range(rounds):
            measure_compiler(figures)
            await measure_steps(engine, figures)
            await measure_map(engine, figures)
            await measure_two(engine, figures)
        await measure_stream(engine, figures, stream_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and a shorter stream, under a minute")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    figures = Figures(MUST)
    rounds, stream_bytes = (3, GIB // 2) if options.quick else (options.rounds, 4 * GIB)
    asyncio.run(measure(figures, rounds=rounds, stream_bytes=stream_bytes))
    for line in figures.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            must = f"  must be {line['must']}, best {line['best']:.3f}" if "must" in line else ""
            print(f"{line['peer']:8} {line['figure']:16} {line['value']:>12,.3f} {line['unit']}{must}", flush=True)


if __name__ == "__main__":
    main()
