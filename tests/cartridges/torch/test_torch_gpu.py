"""On a machine with a GPU: what the device double shows elsewhere, for real."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_check.py"


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_every_check_on_a_gpu_is_met() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_the_checks_run_without_a_gpu_as_far_as_they_can() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(SCRIPT), "--dry", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 7
