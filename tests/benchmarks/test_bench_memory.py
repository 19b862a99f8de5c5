"""What the host holds, by the same program that gives the figures: within its bounds, and every byte arrives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench_memory.py"
LIMIT_S = 110


def figures(scenario: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, str(BENCH), "--json", "--quick", "--only", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert not done.returncode, (lines, done.stderr)
    return {line["figure"]: line for line in lines}


@pytest.mark.parametrize("kind", ["whole_outputs", "item_outputs"])
def test_60_slow_readers_hold_no_more_than_the_budget(kind: str) -> None:
    found = figures(f"slow_readers_{kind}")
    assert found[f"slow_readers_{kind}_rss_growth"]["must"] == "<= 96"


def test_one_slow_reader_of_much_holds_little() -> None:
    assert figures("slow_reader")["slow_reader_rss_growth"]["must"] == "<= 16"


def test_nothing_is_left_of_many_calls() -> None:
    found = figures("calls")
    assert {name for name, line in found.items() if "must" in line} == {
        "calls_rss_growth", "calls_more_descriptors", "calls_more_threads", "calls_more_tasks",
    }  # fmt: skip  # a list to scan
