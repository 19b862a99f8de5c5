"""Engines with short durations on processes that go wrong, and the proof that nothing is left of them."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Settings
from cartdeck.settings import parse_settings
from cartdeck_protocol.caps import build_manifest

FULL_DURATIONS = os.environ.get("CARTDECK_FULL_DURATIONS") == "1"
"""`make soak`: where a test does not say how long something takes, it takes as long as in real life."""
PATIENCE = 12 if FULL_DURATIONS else 1
DATA = Path(__file__).parent.parent / "data" / "cartridges"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., Settings]:
    """Settings with short durations; keyword arguments are sections that replace single values."""

    def make(**sections: dict[str, Any]) -> Settings:
        table: dict[str, dict[str, Any]] = {
            "stop": {"close_s": 0.5, "term_s": 0.5, "kill_s": 1.0},
            "restart": {"first_s": 0.0, "longest_s": 0.0},
            "call": {"tick_s": 0.05, "cancel_s": 0.5, "abandon_s": 1.0},
        }
        if FULL_DURATIONS:
            table = {"restart": table["restart"]}
        for name, values in sections.items():
            table[name] = table.get(name, {}) | values
        return parse_settings({"cartridge_folders": [str(tmp_path / "cartridges")], **table}, origin="test")

    return make


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[..., str]:
    """Declare the program of tests/data that speaks frames with the library alone; its arguments say how it starts.
    Returns the cap that it serves."""

    return lambda *arguments: declare_foreign(tmp_path, *arguments)


@pytest.fixture
def phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cartridge `phases` of tests/data, written with the SDK; the folder that it runs in."""
    folder, packages = declare_phases(tmp_path)
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(packages), known])))
    return folder


def declare_foreign(place: Path, *arguments: str) -> str:
    folder = _declare(place, "foreign", f'"{sys.executable}", "{{folder}}/program.py"', arguments)
    (folder / "program.py").write_bytes((DATA / "foreign" / "program.py").read_bytes())
    return "cap:answer"


def declare_phases(place: Path) -> tuple[Path, Path]:
    """The folder that it runs in, and the one that its package is imported from."""
    folder = _declare(place, "phases", f'"{sys.executable}", "-P", "-m", "cartdeck_sdk", "phases"', ())
    package = place / "packages" / "phases"
    package.mkdir(parents=True)
    (package / "manifest.json").write_bytes((folder / "manifest.json").read_bytes())
    (package / "__init__.py").write_bytes((DATA / "phases" / "__init__.py").read_bytes())
    return folder, package.parent


def _declare(place: Path, name: str, program: str, arguments: tuple[str, ...]) -> Path:
    source = DATA / name
    folder = place / "cartridges" / name
    folder.mkdir(parents=True)
    manifest = build_manifest(
        (source / "manifest.toml").read_text("utf-8"),
        lambda alias: path.read_text("utf-8") if (path := source / f"{alias}.toml").exists() else None,
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    command = ", ".join([program, *(f'"{one}"' for one in arguments)])
    (folder / "cartridge.toml").write_text(f'command = [{command}]\nmanifest = "manifest.json"\n', "utf-8")
    return folder


# -- nothing is left


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No child, no zombie, no descriptor and no thread more than before."""
    descriptors, threads = open_descriptors(), threading.active_count()
    yield
    end = time.monotonic() + 10.0  # the system and a loop's executor may be a moment behind the loop
    while time.monotonic() < end and (
        child_processes() or open_descriptors() > descriptors or other_threads() > threads
    ):
        time.sleep(0.005)
    assert child_processes() == []
    assert open_descriptors() <= descriptors
    assert other_threads() <= threads


@pytest.fixture
async def no_tasks_left(anyio_backend: str) -> AsyncIterator[None]:
    """No task more than before. To be asked for by tests that run on the loop."""
    before = len(asyncio.all_tasks())
    yield
    await until(lambda: len(asyncio.all_tasks()) <= before, limit_s=10.0)


def other_threads() -> int:
    """All but those of the loop's executor, and those that ask callers' iterables, which are kept for the next one."""
    return sum(1 for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "cartdeck-source-")))


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def child_processes() -> list[int]:
    """The direct children of this process, zombies included."""
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, children.read_text("ascii").split())
    return found


# -- looking


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def until(condition: Callable[[], Any], *, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s * PATIENCE} s"
        await asyncio.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """Wait until a condition holds; fail after `limit_s`."""
    return until


@pytest.fixture
def runs() -> Callable[[int], bool]:
    return is_alive


@pytest.fixture
def failure_of() -> Callable[..., Any]:
    """The error that an awaitable raises; fails when it does not end within `limit_s`."""

    async def take(work: Any, *, limit_s: float = 20.0) -> CartdeckError:
        with pytest.raises(CartdeckError) as caught:
            async with asyncio.timeout(limit_s * PATIENCE):
                await work
        return caught.value

    return take
