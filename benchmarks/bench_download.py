"""Downloads from a hub on loopback: one large file, and many small ones, beside huggingface_hub and curl.

    python benchmarks/bench_download.py [--json] [--quick] [--rounds N] [--folder FOLDER]

One JSON line per figure with --json, as bench_wire.py prints them. The peers take turns within a round, each with an
empty cache. `large_MBps` and `small_files_per_s` time the download itself, in a process that is warm; `…_command` the
whole command, `cartdeck pull` beside `hf download`. cartdeck hashes all that comes, the others nothing. Files go to
memory (/dev/shm) where there is room, so that no disk decides.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
BIN: Final = Path(sys.executable).parent
MIB: Final = 1024 * 1024
LIMIT_S: Final = 300
SMALL_COUNT: Final = 200
MEMORY_LIMIT_MIB: Final = 120
KILL_AT: Final = 0.6
SLOW_BYTES_S: Final = 40e6

# What is compared: our figure, the peer, its figure, how far ours must reach. A command has no bound: ours starts two
# processes, and which is quicker depends on the size of what is fetched.
RATIOS: Final = (
    ("large_MBps", "hub_client", "large_MBps", 1.0),
    ("large_MBps", "curl", "large_MBps", 0.7),
    ("small_files_per_s", "hub_client", "small_files_per_s", 1.0),
    ("large_command_MBps", "hf_download", "large_command_MBps", None),
    ("small_command_files_per_s", "hf_download", "small_command_files_per_s", None),
)


class Hub:
    """The hub's process."""

    def __init__(self, large_bytes: int) -> None:
        command = [sys.executable, str(HERE / "hub_server.py"), str(large_bytes), str(SMALL_COUNT)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url: str = self._read()["url"]

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._read()

    def sent(self) -> int:
        """Bytes of content sent since the last question."""
        return int(self.ask("sent")["sent"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        self.process.communicate(timeout=30)


class Bench:
    """One run: the figures, and what each peer needs."""

    def __init__(self, folder: Path, hub: Hub, large_bytes: int) -> None:
        self.folder = folder
        self.hub = hub
        self.large_bytes = large_bytes
        self.values: dict[tuple[str, str], list[float]] = {}
        self.units: dict[tuple[str, str], str] = {}

    def add(self, peer: str, figure: str, value: float, unit: str) -> None:
        self.values.setdefault((peer, figure), []).append(value)
        self.units[peer, figure] = unit

    @contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """The variables of a peer with an empty cache, which is gone afterwards."""
        cache = Path(tempfile.mkdtemp(dir=self.folder))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "CARTDECK_"))}
        try:
            yield {
                **kept,
                "HF_ENDPOINT": self.hub.url,
                "HF_HOME": str(cache),
                "HF_HUB_CACHE": str(cache / "hub"),
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "CARTDECK_CONFIG": os.devnull,
                "CARTDECK_MODELS_DIR": str(cache / "models"),
                "NO_PROXY": "127.0.0.1",
            }
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    # the peers

    def cartdeck(self) -> None:
        with self.environment() as environment:
            found = run_json([HERE / "peer_pull.py", "hf:bench/large:large.gguf"], environment)
            self.add_large("cartdeck", found["taken_s"])
            self.add("cartdeck", "peak_memory_MiB", found["peak_rss_bytes"] / MIB, "MiB")
        with self.environment() as environment:
            found = run_json([HERE / "peer_pull.py", '{"repo_id": "bench/small", "include": "*"}'], environment)
            self.add_small("cartdeck", found["taken_s"])

    def hub_client(self) -> None:
        with self.environment() as environment:
            found = run_json([HERE / "peers" / "peer_hub_client.py", "bench/large", "large.gguf"], environment)
            self.add_large("hub_client", found["taken_s"])
        with self.environment() as environment:
            found = run_json([HERE / "peers" / "peer_hub_client.py", "bench/small"], environment)
            self.add_small("hub_client", found["taken_s"])

    def curl(self) -> None:
        with self.environment() as environment:
            target = str(Path(environment["HF_HOME"]) / "large.gguf")
            url = f"{self.hub.url}/bench/large/resolve/main/large.gguf"
            self.add_large("curl", timed(["curl", "-sfL", "-o", target, url], environment))

    def cartdeck_command(self) -> None:
        with self.environment() as environment:
            taken_s = timed([BIN / "cartdeck", "pull", "-q", "hf:bench/large:large.gguf"], environment)
            self.add_large("cartdeck", taken_s, "large_command_MBps")
        with self.environment() as environment:
            taken_s = timed([BIN / "cartdeck", "pull", "-q", "bench/small", "--include", "*"], environment)
            self.add_small("cartdeck", taken_s, "small_command_files_per_s")

    def hf_download(self) -> None:
        with self.environment() as environment:
            taken_s = timed([BIN / "hf", "download", "bench/large", "large.gguf"], environment)
            self.add_large("hf_download", taken_s, "large_command_MBps")
        with self.environment() as environment:
            taken_s = timed([BIN / "hf", "download", "bench/small"], environment)
            self.add_small("hf_download", taken_s, "small_command_files_per_s")

    def restart(self) -> None:
        """Kill the transfer at 60 %, start it again, and see how much the hub sent the second time."""
        command = [sys.executable, str(HERE / "peer_pull.py"), "hf:bench/large:large.gguf"]
        self.hub.ask(f"rate {SLOW_BYTES_S}")
        with self.environment() as environment:
            killed = subprocess.run(
                [*command, str(KILL_AT)], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            killed_at = json.loads(killed.stdout.splitlines()[-1])["killed_at"]
            self.hub.ask("rate 0")
            time.sleep(0.5)  # what was under way when it died has been counted
            self.hub.sent()
            run_json(command[1:], environment)
            again = self.hub.sent() / self.large_bytes
        self.add("cartdeck", "killed_at", 100 * killed_at, "%")
        self.add("cartdeck", "fetched_again", 100 * again, "%")
        self.add("cartdeck", "fetched_again_beyond_missing", 100 * (again - (1 - killed_at)), "%")

    # what is printed

    def add_large(self, peer: str, taken_s: float, figure: str = "large_MBps") -> None:
        self.add(peer, figure, self.large_bytes / 1e6 / taken_s, "MB/s")

    def add_small(self, peer: str, taken_s: float, figure: str = "small_files_per_s") -> None:
        self.add(peer, figure, SMALL_COUNT / taken_s, "1/s")

    def lines(self) -> Iterator[dict[str, Any]]:
        bounds = {
            "peak_memory_MiB": f"<= {MEMORY_LIMIT_MIB}",
            "fetched_again": "<= 41",
            "fetched_again_beyond_missing": "<= 1",
        }
        for (peer, figure), values in self.values.items():
            line = {
                "peer": peer,
                "figure": figure,
                "value": round(statistics.median(values), 3),
                "unit": self.units[peer, figure],
                "min": round(min(values), 3),
                "max": round(max(values), 3),
            }
            yield {**line, "must": bounds[figure]} if figure in bounds else line
        for ours, peer, theirs, least in RATIOS:
            mine, other = self.values["cartdeck", ours], self.values[peer, theirs]
            line = {
                "peer": "ratio",
                "figure": f"{ours} / {peer}",
                "value": round(statistics.median(mine) / statistics.median(other), 4),
                "unit": "x",
                "best": round(max(mine) / max(other), 4),
            }
            yield line if least is None else {**line, "must": f">= {least:g}"}


def timed(command: list[Any], environment: dict[str, str]) -> float:
    """How long the command takes, in seconds."""
    begun = time.perf_counter()
    done = subprocess.run(
        [str(one) for one in command], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    taken_s = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
    return taken_s


def run_json(arguments: list[Any], environment: dict[str, str]) -> dict[str, Any]:
    """The record that a Python program prints last."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{command[1]} failed with {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def default_folder(need_bytes: int) -> str | None:
    """Memory where it has room for the files of one peer; else the usual temporary folder."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > need_bytes else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one round with a smaller file, under a minute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where files go; memory by default")
    options = parser.parse_args()
    if shutil.which("curl") is None:
        raise SystemExit("bench_download.py compares with curl, which is not on PATH: install it.")
    large_bytes = (128 if options.quick else 512) * MIB
    folder = Path(tempfile.mkdtemp(dir=options.folder or default_folder(3 * large_bytes)))
    hub = Hub(large_bytes)
    try:
        bench = Bench(folder, hub, large_bytes)
        peers: list[Callable[[], None]] = [bench.curl, bench.cartdeck, bench.hub_client]
        commands: list[Callable[[], None]] = [bench.cartdeck_command, bench.hf_download]
        for number in range(1 if options.quick else options.rounds):
            for peer in [*peers, *commands] if number % 2 == 0 else [*reversed(peers), *reversed(commands)]:
                peer()
        bench.restart()
    finally:
        hub.close()
        shutil.rmtree(folder, ignore_errors=True)
    for line in bench.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            must = f"  must be {line['must']}" if "must" in line else ""
            must += f", best {line['best']}" if "best" in line else ""
            print(f"{line['peer']:12} {line['figure']:38} {line['value']:>10,.3f} {line['unit']}{must}", flush=True)


if __name__ == "__main__":
    main()
