"""Everything at once, for as long as it is told, from a seed; and nothing is left of it.

    python tests/faults/soak.py [--minutes 10] [--seed N] [--round N]

What is done is `mix.py`'s. Durations are the defaults, not the short ones of the tests. It goes in rounds of twenty
seconds: an engine is opened, everything happens in it, it is closed; then there is no child, no zombie, no grandchild,
no descriptor, thread or task more than before, and after some rounds memory grows no more. The seed is said first and
last, and what repeats a round that failed. Which call meets which death is up to the scheduler: the same seed draws the
same deeds, and may have to be run more than once.
"""

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

from mix import WIRE, Mix

from cartdeck import Engine, Settings
from cartdeck.environment import SESSION_VARIABLE
from cartdeck.sessions.marked import find_marked
from cartdeck.settings import parse_settings
from conftest import child_processes, declare_foreign, declare_phases, open_descriptors, other_threads

ROUND_S: Final = 20.0
PAUSES_S: Final = (0.3, 4.0, 1.5)
"""Between two disturbances at most, turn about: with many of them few calls get far."""
SETTLED_AFTER: Final = 2
"""Rounds after which memory grows no more."""
MOST_GROWTH_MIB: Final = 24
HUNG_AFTER_S: Final = 180
GONE_S: Final = 3.0


def rss_mib() -> float:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class Soak:
    """Rounds, and what they add up to."""

    def __init__(self, seed: int, settings: Settings, foreign: str) -> None:
        self.seed = seed
        self.settings = settings
        self.foreign = foreign
        self.rounds = 0
        self.answers = 0
        self.counts: dict[str, Counter[str]] = {"did": Counter(), "errors": Counter(), "disturbed by": Counter()}
        self.rss_mib: list[float] = []

    def run_round(self, number: int, *, seconds: float) -> None:
        """One round, and what is left of it. Raises for what must not be."""
        before = (open_descriptors(), other_threads())
        faulthandler.dump_traceback_later(HUNG_AFTER_S, exit=True)
        asyncio.run(self._round(number, seconds))
        faulthandler.cancel_dump_traceback_later()
        assert not (left := child_processes()), f"children are left: {left}"
        end = time.monotonic() + GONE_S
        while (after := (open_descriptors(), other_threads())) > before and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert after[0] <= before[0], f"{after[0] - before[0]} descriptors are left"
        assert after[1] <= before[1], f"{after[1] - before[1]} threads are left"
        self.rounds += 1
        self.rss_mib.append(rss_mib())
        if len(self.rss_mib) > SETTLED_AFTER:
            grown = self.rss_mib[-1] - self.rss_mib[SETTLED_AFTER - 1]
            assert grown < MOST_GROWTH_MIB, f"memory grew by {grown:.1f} MiB: {self.rss_mib}"

    async def _round(self, number: int, seconds: float) -> None:
        tasks = len(asyncio.all_tasks())
        async with Engine(self.settings) as engine:
            mix = Mix(engine, self.foreign, f"{self.seed} {number}")
            try:
                await mix.work(seconds=seconds, pause_s=PAUSES_S[number % len(PAUSES_S)])
                await mix.check(limit_s=self.settings.call.abandon_s + 10)
            finally:
                self._add(mix)
        end = time.monotonic() + GONE_S
        while (count := len(asyncio.all_tasks())) > tasks and time.monotonic() < end:  # noqa: ASYNC110  # they have no event
            await asyncio.sleep(0.01)
        assert count <= tasks, f"tasks are left: {asyncio.all_tasks()}"
        left = [pid for mark in mix.marks for pid in find_marked(SESSION_VARIABLE, mark)]
        assert not left, f"processes that sessions started are left: {left}"

    def _add(self, mix: Mix) -> None:
        self.answers += mix.answers
        for client in mix.clients:
            self.counts["did"] += client.deeds
        self.counts["errors"].update({code.name: count for code, count in mix.errors.items()})
        self.counts["disturbed by"] += mix.disturbances

    def report(self) -> None:
        print(f"soak: {self.rounds} rounds, {self.answers} answers, memory {[round(mib) for mib in self.rss_mib]} MiB")
        for what, counts in self.counts.items():
            print(f"soak: {what} " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))


def soak(minutes: float, seed: int, first: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        foreign = declare_foreign(place)
        _, packages = declare_phases(place)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")]))
        settings = parse_settings(
            {
                "cartridge_folders": [str(place / "cartridges")],
                "restart": {"first_s": 0.0, "longest_s": 0.0, "quarantine_after": 1_000_000},
                "wire": WIRE,
            },
            origin="soak",
        )
        run = Soak(seed, settings, foreign)
        end, number = time.monotonic() + 60 * minutes, first
        while (left_s := end - time.monotonic()) > 0 or number == first:
            try:
                run.run_round(number, seconds=min(ROUND_S, max(left_s, 1.0)))
            except BaseException as error:
                traceback.print_exception(error)
                run.report()
                command = f"{sys.executable} {Path(__file__)} --seed {seed} --round {number} --minutes 1"
                print(f"soak: FAILED in round {number} of seed {seed}. To repeat it: {command}", flush=True)
                return False
            number += 1
        run.report()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--round", type=int, default=0, help="the round to begin with")
    options = parser.parse_args()
    print(f"soak: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    if not soak(options.minutes, options.seed, options.round):
        raise SystemExit(1)
    print(f"soak: well, with seed {options.seed}", flush=True)


if __name__ == "__main__":
    main()
