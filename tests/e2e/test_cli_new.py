"""A new cartridge, untouched: it installs, a host finds it, and it passes its own test, which runs the kit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).parent / "cartdeck")
pytestmark = pytest.mark.timeout(240)


def run(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_new_cartridge_installs_is_found_and_passes(tmp_path: Path) -> None:
    written = run([CARTDECK, "new", "cartridge", "shout-it"], tmp_path).splitlines()
    assert "shout-it/pyproject.toml" in written
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run([*pip, "--target", "site", "./shout-it"], tmp_path)
    site = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    assert run([CARTDECK, "call", "shout-it", "--arg", "text=hello"], tmp_path, PYTHONPATH=site) == "HELLO"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "tests"]
    assert "3 passed" in run(tests, tmp_path / "shout-it", PYTHONPATH=site)
