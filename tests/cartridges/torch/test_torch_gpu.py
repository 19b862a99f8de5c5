"""On a machine with a GPU: what the device double shows elsewhere, for real."""

import runpy
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


def test_the_checks_run_without_a_gpu_as_far_as_they_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dry", "--json"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    status = runpy.run_path(str(SCRIPT))["main"]()  # in this process: another one would import torch anew
    said = capsys.readouterr().out
    assert status == 0, said
    assert len(said.splitlines()) >= 7
