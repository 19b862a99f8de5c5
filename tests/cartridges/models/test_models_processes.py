"""Several processes and one cache: one transfer, no temporary files left, also where locks do nothing."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck_models.library import Library
from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task

Eventually = Callable[[Callable[[], bool], float], bool]

SPEC = "pypi:demo-model==1.0/demo_model/m.gguf"
LIMIT_S = 100
PROGRAM = """
import sys
if "no-locks" in sys.argv:
    import fcntl
    fcntl.flock = lambda *_: None
from pathlib import Path
from cartdeck_models.library import Library
from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
told = lambda advance: print(advance.phase, advance.work or 0, advance.message, flush=True)
task = Task(told, lambda: False)
print("path", Library(Settings(Path(sys.argv[1]))).obtain(parse_spec(sys.argv[2]), task).path, flush=True)
"""


def start(root: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(root), SPEC, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[str]:
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return out.splitlines()


def temporary(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.endswith((".part", ".whl", ".tmp")) or "pip-" in path.name]


def test_two_processes_fetch_one_model_once_and_the_second_says_that_it_waits(index, make_wheel, tmp_path) -> None:
    hosted = index.add(make_wheel({"demo_model/m.gguf": random.Random(1).randbytes(2_000_000)}), rate_bytes_s=100_000)
    first = start(tmp_path)
    assert index.started.wait(LIMIT_S)
    second = start(tmp_path)
    assert second.stdout is not None
    waiting = next(line for line in second.stdout if line.startswith("waiting_for_lock"))
    hosted.rate_bytes_s = 0
    first_lines, second_lines = finish(first), finish(second)

    assert first_lines[-1] == second_lines[-1]
    assert list(index.gets.values()) == [1]
    assert f"process {first.pid}" in waiting
    assert temporary(tmp_path) == []


def test_where_locks_do_nothing_both_fetch_and_neither_harms_the_other(index, make_wheel, tmp_path) -> None:
    content = random.Random(2).randbytes(20 * 1024 * 1024)
    index.add(make_wheel({"demo_model/m.gguf": content}), rate_bytes_s=20_000_000)
    processes = [start(tmp_path, "no-locks") for _ in range(2)]
    lines = [finish(process) for process in processes]

    path = lines[0][-1].removeprefix("path ")
    assert lines[1][-1] == f"path {path}"
    assert Path(path).read_bytes() == content
    assert temporary(tmp_path) == []


def test_a_killed_transfer_starts_anew_and_leaves_no_more_on_the_disk(
    index, make_wheel, tmp_path, eventually: Eventually
) -> None:
    hosted = index.add(make_wheel({"demo_model/m.gguf": random.Random(3).randbytes(2_000_000)}), rate_bytes_s=500_000)
    for _ in range(2):
        index.started.clear()
        process = start(tmp_path)
        assert process.stdout is not None
        assert index.started.wait(LIMIT_S)
        assert any(int(line.split()[1]) for line in process.stdout if line.startswith("download"))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
        assert index.wait_idle(30), "pip outlived the cartridge"
        assert len([path for path in (tmp_path / "staging").iterdir() if path.is_dir()]) == 1

    hosted.rate_bytes_s = 0
    assert finish(start(tmp_path))[-1].startswith("path ")
    assert [path for path in (tmp_path / "staging").iterdir() if path.is_dir()] == []
    assert temporary(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of 8 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True, timeout=30)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a tmpfs needs root on Linux")
@pytest.mark.parametrize("has_length", [True, False])
def test_a_full_disk_is_told_and_nothing_is_left_on_it(index, make_wheel, small_disk, has_length: bool) -> None:
    from cartdeck_protocol.errors import CartdeckError, Code

    wheel = make_wheel({"demo_model/m.gguf": random.Random(4).randbytes(20 * 1024 * 1024)})
    index.add(wheel, has_length=has_length, rate_bytes_s=20_000_000)

    with pytest.raises(CartdeckError) as caught:
        Library(Settings(small_disk / "models")).obtain(
            parse_spec(SPEC), Task(lambda _: None, threading.Event().is_set)
        )

    assert caught.value.code is Code.INSUFFICIENT_STORAGE
    assert caught.value.details["free"] <= 8 * 1024 * 1024
    if has_length:
        assert caught.value.details["need"] == 2 * len(wheel)
    assert not [path for path in small_disk.rglob("*") if path.is_file() and path.stat().st_size > 1000]
