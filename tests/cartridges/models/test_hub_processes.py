"""Several callers and processes, one hub and one cache: one transfer, after a kill too, and where locks do nothing."""

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError, Code

SPEC = "hf:owner/name:m.gguf"
DATA = random.Random(11).randbytes(4_000_000)
LIMIT_S = 100
PROGRAM = """
import os, sys
if "no-locks" in sys.argv:
    import fcntl
    fcntl.flock = lambda *_: None
from cartdeck_models.library import Library
from cartdeck_models.settings import Settings
from cartdeck_models.spec import parse_spec
from cartdeck_models.task import Task
told = lambda advance: print(advance.phase, advance.work or 0, advance.message, flush=True)
found = Library(Settings.from_environment()).obtain(parse_spec(sys.argv[1]), Task(told, lambda: False))
print("path", found.path, found.resumed_bytes, flush=True)
"""


@pytest.fixture
def file(hub) -> Any:
    hub.add({"m.gguf": DATA})
    return hub.file("m.gguf")


@pytest.fixture
def start(hub, tmp_path: Path) -> Any:
    """Start a process that obtains the model."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> "subprocess.Popen[str]":
        settings = {"HF_ENDPOINT": hub.url, "CARTDECK_MODELS_DIR": str(tmp_path / "models")}
        command = [sys.executable, "-c", PROGRAM, SPEC, *options]
        environment = {**os.environ, **settings}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: "subprocess.Popen[str]") -> list[str]:
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return out.splitlines()


def told(lines: list[str]) -> tuple[Path, int]:
    """The model's path, in which spaces may be, and how many bytes were there before."""
    path, resumed_bytes = lines[-1].partition(" ")[2].rsplit(" ", 1)
    return Path(path), int(resumed_bytes)


def gets(hub) -> list[Any]:
    return [request for request in hub.requests if request.origin == "storage" and request.method == "GET"]


def test_a_killed_transfer_goes_on_where_it_was(hub, file, start, desk) -> None:
    file.rate_bytes_s = 1_500_000
    process = start()
    for line in process.stdout:
        if line.startswith("download") and int(line.split()[1]) >= 0.6 * len(DATA):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    assert hub.wait_idle(LIMIT_S)
    assert not list(desk.root.rglob("m.gguf"))
    before, file.rate_bytes_s = hub.sent["m.gguf"], 0
    path, resumed_bytes = told(finish(start()))

    assert path.read_bytes() == DATA
    assert resumed_bytes >= 0.59 * len(DATA)
    assert hub.sent["m.gguf"] - before <= 0.41 * len(DATA)
    assert desk.leftovers() == []


def test_killed_transfers_leave_no_more_from_run_to_run(hub, file, start, desk) -> None:
    file.rate_bytes_s = 400_000
    for _ in range(3):
        hub.started.clear()
        process = start()
        assert hub.started.wait(LIMIT_S)
        assert any(line.startswith("download") and int(line.split()[1]) for line in process.stdout)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
        assert len([path for path in desk.leftovers() if path.name.endswith(".part")]) == 1

    file.rate_bytes_s = 0
    finish(start())
    assert desk.leftovers() == []
    assert not list((desk.settings.hub_cache_dir / "models--owner--name" / ".parts").iterdir())


def test_two_processes_fetch_one_file_once_and_the_second_says_that_it_waits(hub, file, start, desk) -> None:
    file.rate_bytes_s = 100_000
    first = start()
    assert hub.started.wait(LIMIT_S)
    second = start()
    waiting = next(line for line in second.stdout if line.startswith("waiting_for_lock"))
    file.rate_bytes_s = 0
    first_lines, second_lines = finish(first), finish(second)

    assert first_lines[-1] == second_lines[-1]
    assert len(gets(hub)) == 1
    assert f"process {first.pid}" in waiting


def test_where_locks_do_nothing_both_fetch_and_neither_harms_the_other(hub, start, desk) -> None:
    content = random.Random(12).randbytes(20 * 1024 * 1024)
    hub.add({"m.gguf": content})
    hub.file("m.gguf").rate_bytes_s = 20_000_000
    lines = [finish(process) for process in [start("no-locks"), start("no-locks")]]

    (path, _), (other, _) = map(told, lines)
    assert path == other
    assert path.read_bytes() == content
    assert desk.leftovers() == []


def test_eight_callers_at_once_share_one_transfer_and_each_sees_it_rise(hub, file, desk) -> None:
    file.rate_bytes_s = 2_000_000
    library = desk.library()
    told: list[list[Advance]] = [[] for _ in range(8)]

    def obtain(number: int) -> Path:
        return library.obtain(parse_spec(SPEC), Task(told[number].append, lambda: False)).path

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(obtain, range(8)))

    assert len(paths) == 1
    assert len(gets(hub)) == 1
    for advances in told:
        fractions = [advance.fraction or 0.0 for advance in advances]
        assert fractions == sorted(fractions)
        assert advances[-1].work == len(DATA)


def test_two_specs_that_share_a_file_share_its_transfer(hub, desk, fake_hub) -> None:
    hub.add({"m.gguf": fake_hub.File(DATA, rate_bytes_s=2_000_000), "mmproj-F16.gguf": b"x"})
    library = desk.library()
    specs = [SPEC, '{"repo_id": "owner/name", "filename": "m.gguf", "include": "mmproj*"}']
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda spec: desk.obtain(spec, library), specs))

    assert len({one.path for one in found}) == 1
    assert [len(one.files) for one in found] == [1, 2]
    assert hub.sent["m.gguf"] == len(DATA)


def test_a_caller_that_cancels_leaves_the_others_their_transfer(hub, file, desk, eventually) -> None:
    file.rate_bytes_s = 100_000
    library = desk.library()
    leaves = threading.Event()
    outcomes: list[CartdeckError] = []

    def leave() -> None:
        with pytest.raises(CartdeckError) as caught:
            library.obtain(parse_spec('{"repo_id": "owner/name", "filename": "m.gguf"}'), Task(_ignore, leaves.is_set))
        outcomes.append(caught.value)

    thread = threading.Thread(target=leave)
    thread.start()
    assert hub.started.wait(LIMIT_S)
    staying = threading.Thread(target=lambda: desk.obtain("hf:owner/name@main:m.gguf", library))
    staying.start()
    transfers = library._flights._all  # who shares them is not public
    assert eventually(lambda: [one.passengers for one in list(transfers)] == [2], LIMIT_S)
    leaves.set()
    thread.join(LIMIT_S)
    file.rate_bytes_s = 0
    staying.join(LIMIT_S)

    assert [error.code for error in outcomes] == [Code.CANCELLED]
    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert len(gets(hub)) == 1


def test_the_last_caller_out_stops_the_transfer_and_what_came_is_kept(hub, file, desk) -> None:
    file.rate_bytes_s = 500_000
    library = desk.library()
    stop = threading.Event()

    def on_advance(advance: Advance) -> None:
        if (advance.work or 0) > 200_000:
            stop.set()

    with pytest.raises(CartdeckError):
        library.obtain(parse_spec(SPEC), Task(on_advance, stop.is_set))
    assert hub.wait_idle(30)
    library.close(5.0)
    file.rate_bytes_s = 0

    assert desk.obtain(SPEC).resumed_bytes >= 200_000


def test_the_end_of_the_library_ends_its_connections(hub, file, desk) -> None:
    file.stalls_at = 1_000_000
    desk.set(quiet_limit_s=60.0)
    library = desk.library()
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(desk.obtain, SPEC, library)
        assert hub.started.wait(LIMIT_S)
        library.close(5.0)
        error = caller.exception(LIMIT_S)

    assert isinstance(error, CartdeckError)
    assert error.code is Code.CANCELLED
    assert hub.wait_idle(30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of 8 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True, timeout=30)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a tmpfs needs root on Linux")
@pytest.mark.parametrize("is_known", [True, False])
def test_a_full_disk_is_told_before_the_first_byte_or_leaves_nothing(hub, desk, small_disk, is_known: bool) -> None:
    hub.add({"m.gguf": random.Random(13).randbytes(20 * 1024 * 1024)})
    hub.file("m.gguf").lists_size = is_known
    desk.settings = Settings(small_disk / "models", hub=desk.hub_settings)
    error = desk.refused(SPEC)

    assert error.code is Code.INSUFFICIENT_STORAGE
    assert error.details["free"] <= 8 * 1024 * 1024
    assert "CARTDECK_MODELS_DIR" in error.message
    if is_known:
        assert error.details["need"] == 20 * 1024 * 1024
        assert not hub.asked_for("/resolve/")
    assert not [path for path in small_disk.rglob("*") if path.is_file() and path.stat().st_size > 10_000]


def test_what_an_earlier_transfer_left_counts_as_room(hub, file, desk, monkeypatch) -> None:
    monkeypatch.setattr("cartdeck_models.hub.patience.FIRST_WAIT_S", 0.01)
    file.dead_from = 3_000_000
    assert desk.refused(SPEC).code is Code.DOWNLOAD_INTERRUPTED
    file.dead_from = None
    usage = type("Usage", (), {"free": 1_500_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    assert desk.obtain(SPEC).path.read_bytes() == DATA


def _ignore(_: Advance) -> None: ...
