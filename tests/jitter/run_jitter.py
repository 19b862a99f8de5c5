"""Owns a run of the tests with naps in every process of the environment: `make jitter`.

It does not know where the naps are taken. While it runs, a file beside the environment's packages makes each Python
of it load `naps`; whatever else uses the environment meanwhile naps too. The file is taken away at the end; one that a
killed run left has no effect, for it asks whether the run lives.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
HOOK: Final = Path(sysconfig.get_path("purelib")) / "cartdeck_jitter.pth"

SETTINGS: Final = ((0.2, 0.004, 0.0005), (0.06, 0.04, 0.002), (0.5, 0.001, 0.00005))
"""Rounds: how often, how long on average in seconds, and how long a thread keeps the interpreter."""

EXPECTED: Final = (
    "tests/protocol/test_manifests.py::test_reading_a_manifest_loads_nothing_for_authors_and_nothing_impure"
)
"""Sees what the naps themselves import."""


@contextlib.contextmanager
def naps(probability: float, mean_s: float, switch_s: float) -> Iterator[None]:
    """Each Python of this environment that starts within naps."""
    call = f"naps.begin({probability!r}, {mean_s!r}, switch_s={switch_s!r}, run={os.getpid()})"
    HOOK.write_text(f"import sys; sys.path.append({str(HERE)!r}); import naps; sys.path.pop(); {call}\n")
    try:
        yield
    finally:
        HOOK.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the tests with random naps where threads and processes meet, to find what depends on order.",
        epilog="for instance: make jitter ARGS='tests/host -x'",
    )
    parser.add_argument("--rounds", type=int, default=len(SETTINGS), help="one for each of the settings (3)")
    options, arguments = parser.parse_known_args()
    found = 0
    for number in range(options.rounds):
        probability, mean_s, switch_s = SETTINGS[number % len(SETTINGS)]
        print(f"jitter: round {number + 1}: naps of {mean_s:g} s at {probability:.0%} of the places", flush=True)
        with naps(probability, mean_s, switch_s):
            command = [sys.executable, "-m", "pytest", f"--deselect={EXPECTED}", *arguments]
            found = max(found, subprocess.run(command, cwd=ROOT, check=False).returncode)
    return found


if __name__ == "__main__":
    sys.exit(main())
