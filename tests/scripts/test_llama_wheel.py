"""The script that builds llama-cpp-python once: its names, its lock, and what it says when a build fails.

No build runs here: pip is kept from every index, so that it fails at once.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "llama_wheel.py"
WHEEL = "llama_cpp_python-0.0-py3-none-any.whl"


def start(*arguments: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "CMAKE_", "CXX"))}
    alone = {"XDG_CACHE_HOME": str(cache), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        env={**kept, **alone, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def where(cache: Path, **environment: str) -> Path:
    printed, errors = start("--where", cache=cache, **environment).communicate(timeout=30)
    assert errors == ""
    return Path(printed.strip())


def keep_wheel(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / WHEEL).write_bytes(b"")
    return folder / WHEEL


def test_a_wheel_is_kept_under_the_cache_folder_and_named_by_version(tmp_path: Path) -> None:
    folder = where(tmp_path)
    assert folder.parent == tmp_path / "cartdeck" / "wheels"
    assert f"llama-cpp-python=={folder.name.split('-')[3]}\n" in (ROOT / "constraints.txt").read_text("utf-8")


def test_another_way_to_build_has_another_name(tmp_path: Path) -> None:
    usual = where(tmp_path)
    assert where(tmp_path, CMAKE_ARGS="-DGGML_CUDA=on") != usual
    assert where(tmp_path, CMAKE_ARGS=" -DA=1   -DB=2 ") == where(tmp_path, CMAKE_ARGS="-DA=1 -DB=2")
    assert where(tmp_path, CMAKE_ARGS="-DGGML_NATIVE=OFF") != where(tmp_path, CMAKE_ARGS="-DGGML_NATIVE=ON")


def test_a_kept_wheel_is_used_without_a_build(tmp_path: Path) -> None:
    wheel = keep_wheel(where(tmp_path))
    printed, errors = start(cache=tmp_path, PATH="/nowhere").communicate(timeout=30)
    assert (printed, errors) == (f"{wheel}\n", "")


def test_a_missing_compiler_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    process = start(cache=tmp_path, PATH="/nowhere")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "no C++ compiler" in errors
    assert "apt install g++" in errors
    assert "LLAMA=" in errors


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_no_wheel(tmp_path: Path) -> None:
    process = start(cache=tmp_path, CXX=sys.executable)
    printed, errors = process.communicate(timeout=60)
    folder = where(tmp_path)
    assert (process.returncode, printed) == (1, "")
    assert f"The end of {folder}.log" in errors
    assert "No matching distribution" in errors
    assert not folder.exists()
    assert {path.suffix for path in folder.parent.iterdir()} == {".log", ".lock"}


@pytest.mark.timeout(60)
def test_a_second_builder_waits_for_the_first_and_takes_its_wheel(tmp_path: Path) -> None:
    folder = where(tmp_path)
    folder.parent.mkdir(parents=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(cache=tmp_path)
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        wheel = keep_wheel(folder)
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed, errors) == (0, f"{wheel}\n", "")
