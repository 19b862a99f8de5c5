"""The naps bring up an order of threads that is rare without them."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# A thread that tells twice, and a reader that takes the first that it is told for the whole.
RACE = """
import queue, sys, threading
sys.path.insert(0, {here!r})
import naps
naps.begin({probability}, 0.005, seed=7, run={run})
import concurrent.futures  # a module that comes later is changed too

def work(told, outcome):
    told.put("first")
    outcome.set_result(None)

found = 0
for _ in range(60):
    told, outcome = queue.Queue(), concurrent.futures.Future()
    thread = threading.Thread(target=work, args=(told, outcome))
    thread.start()
    told.get()
    found += not outcome.done()
    thread.join()
print(found, "naps" in (type(finder).__module__ for finder in sys.meta_path))
"""


@pytest.mark.parametrize("alters", [True, False], ids=["run-lives", "run-is-gone"])
def test_an_order_that_is_rare_comes_often(alters: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        gone.wait(30)
    program = RACE.format(here=str(HERE), probability=0.4, run=None if alters else gone.pid)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    found, is_napping = done.stdout.split()
    assert is_napping == str(alters)
    if alters:
        assert int(found) >= 5  # of 60; without naps none on an idle machine
