"""Calls, bytes and small messages through the whole engine, beside a raw pipe, gRPC and MCP: interleaved, one run.

    python benchmarks/bench_wire.py [--json] [--quick] [--rounds N] [--only PEER,PEER]

One JSON line per figure with --json ({"peer", "figure", "value", "unit", "min", "max"}), the median over the rounds;
`ratio` lines compare cartdeck with a peer in the same run. --quick runs one round in under a minute. The round trip of
a raw pipe itself jumps between 5 and 45 µs with the scheduler: compare CPU, and the best of several rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
COMMANDS: Final = {
    "cartdeck": [HERE / "peer_cartdeck.py", "asyncio"],
    "raw_pipe": [HERE / "peers" / "peer_rawpipe.py"],
    "grpc_uds": [HERE / "peers" / "peer_grpc.py", "uds"],
    "mcp_stdio": [HERE / "peers" / "peer_mcp.py"],
}
LIMIT_S: Final = 120
BEST_IS_HIGHEST: Final = ("1/s", "MB/s")

# What is compared: our figure, the peer, its figure, the bound that must hold ("<" at most, ">" at least).
RATIOS: Final = (
    ("cpu_us_per_call", "grpc_uds", "cpu_us_per_call", "<", 1 / 3),
    ("calls_per_s_64", "grpc_uds", "calls_per_s_64", ">", 5),
    ("throughput_MBps", "raw_pipe", "throughput_MBps", ">", 0.35),
    ("upload_MBps", "raw_pipe", "throughput_MBps", ">", 0.35),
    ("peer_MBps", "raw_pipe", "throughput_MBps", ">", 0.15),
    ("small_msgs_per_s", "grpc_uds", "small_msgs_per_s", ">", 10),
    ("small_chunk_each_per_s", "grpc_uds", "small_msgs_per_s", ">", 5),
    ("start_to_answer_ms", "bare_python", "start_ms", "<", 1.8),
)

Values = dict[tuple[str, str], list[float]]


class Figures:
    """Values by peer and figure, over the rounds."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.units: dict[tuple[str, str], str] = {}

    def add(self, peer: str, figure: str, value: float, unit: str) -> None:
        self.values.setdefault((peer, figure), []).append(value)
        self.units[peer, figure] = unit

    def best(self, peer: str, figure: str) -> float | None:
        values = self.values.get((peer, figure))
        if not values:
            return None
        return max(values) if self.units[peer, figure] in BEST_IS_HIGHEST else min(values)

    def lines(self) -> Iterable[dict[str, Any]]:
        for (peer, figure), values in self.values.items():
            yield {
                "peer": peer,
                "figure": figure,
                "value": round(statistics.median(values), 3),
                "unit": self.units[peer, figure],
                "min": round(min(values), 3),
                "max": round(max(values), 3),
            }
        for ours, peer, theirs, sense, bound in RATIOS:
            mine, other = self.values.get(("cartdeck", ours)), self.values.get((peer, theirs))
            if mine and other:
                best_mine, best_other = self.best("cartdeck", ours), self.best(peer, theirs)
                assert best_mine is not None
                assert best_other is not None
                yield {
                    "peer": "ratio",
                    "figure": f"{ours} / {peer}",
                    "value": round(statistics.median(mine) / statistics.median(other), 4),
                    "unit": "x",
                    "best": round(best_mine / best_other, 4),
                    "must": f"{sense}= {bound:.3g}",
                }


def run_peer(name: str, figures: Figures) -> None:
    """One round of one peer, in a process of its own."""
    command = [sys.executable, *map(str, COMMANDS[name])]
    done = subprocess.run(command, cwd=HERE / "peers", capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        print(f"# {name} failed with {done.returncode}: {(done.stderr or done.stdout)[-500:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            figures.add(found["peer"], found["figure"], found["value"], found["unit"])


IMPORTS: Final = (
    "import asyncio, concurrent.futures.thread, ctypes, fcntl, json, msgpack, signal, subprocess, traceback"
)


def measure_starts(figures: Figures) -> None:
    """The echo cartridge from spawn to its first answer beside a bare Python with the same libraries imported."""
    sys.path.insert(0, str(HERE))
    from start_probe import first_answer_s  # noqa: PLC0415  # needs cartdeck, which --only may leave out

    figures.add("cartdeck", "start_to_answer_ms", first_answer_s("cartdeck_echo") * 1e3, "ms")
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    figures.add("bare_python", "start_ms", (time.perf_counter() - begun) * 1e3, "ms")
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cartdeck_gguf", "manifest"], check=True, stdout=subprocess.DEVNULL)
    figures.add("cartdeck", "manifest_ms", (time.perf_counter() - begun) * 1e3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one round, under a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="peers, with commas between")
    options = parser.parse_args()
    names = [name for name in COMMANDS if not options.only or name in options.only.split(",")]
    figures = Figures()
    for number in range(1 if options.quick else options.rounds):
        for name in names if number % 2 == 0 else reversed(names):  # turn about, so that drift favours nobody
            run_peer(name, figures)
        if "cartdeck" in names:
            for _ in range(5):
                measure_starts(figures)
    for line in figures.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            must = f"  must be {line['must']}, best {line['best']}" if "must" in line else ""
            print(f"{line['peer']:12} {line['figure']:34} {line['value']:>12,.3f} {line['unit']}{must}", flush=True)


if __name__ == "__main__":
    main()
