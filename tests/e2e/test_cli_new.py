"""A new cartridge, untouched: it installs, a host finds it, and it passes its own test, which runs the kit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck_conformance import Durations, Options, check_cartridge

CARTDECK = str(Path(sys.executable).parent / "cartdeck")
pytestmark = pytest.mark.timeout(240)
QUICK = Options(durations=Durations(heartbeat_s=0.05, keepalive_s=0.1, quiet_s=0.05, start_s=20.0, exit_s=20.0))


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


def test_a_new_cartridge_in_node_is_registered_called_and_keeps_the_rules(tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not here")
    run([CARTDECK, "new", "cartridge", "shout-node", "--language", "node"], tmp_path)
    folder = tmp_path / "shout-node"
    npm = ["npm", "install", "--no-fund", "--no-audit", "--prefer-offline", "--fetch-retries=0", "--fetch-timeout=5000"]
    done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot fetch a msgpack library here: {done.stderr.strip()[-200:]}")
    (tmp_path / "config.toml").write_text(f'cartridge_folders = ["{tmp_path / "cartridges"}"]\n', "utf-8")
    config = str(tmp_path / "config.toml")
    assert "shout-node" in run([CARTDECK, "install", "./shout-node"], tmp_path, CARTDECK_CONFIG=config)
    call = [CARTDECK, "call", "shout-node", "--arg", "text=hello"]
    assert run(call, tmp_path, CARTDECK_CONFIG=config) == "HELLO"
    report = check_cartridge(["node", str(folder / "cartridge.mjs")], fast=True, options=QUICK)
    assert report.passed, str(report)
    lines = sum(len((folder / name).read_text("utf-8").splitlines()) for name in ("wire.mjs", "cartridge.mjs"))
    assert lines < 300, "it is there to be read"
