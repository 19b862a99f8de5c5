"""The cartridge in C, built and checked where there are a compiler and the library's header."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cartdeck_conformance import Durations, Options, check_cartridge
from cartdeck_sdk.manifest import generate

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = Options(durations=Durations(heartbeat_s=0.05, keepalive_s=0.1, quiet_s=0.05, start_s=20.0, exit_s=20.0))


def test_the_cartridge_in_c_keeps_the_rules(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, program = EXAMPLES / "c-echo", tmp_path / "echo"
    found = subprocess.run(
        [compiler, "-E", "-x", "c", "-"], input=b"#include <msgpack.h>\n", capture_output=True, timeout=60, check=False
    )
    if found.returncode:
        pytest.skip("msgpack.h is not here (apt install libmsgpack-dev)")
    command = ["make", "-C", str(source), f"OUT={program}", "CFLAGS=-O1 -Wall -Wextra -Werror"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert generate(str(source)) == (source / "manifest.json").read_bytes()
    report = check_cartridge([str(program), str(source / "manifest.json")], fast=True, options=QUICK)
    assert report.passed, str(report)
