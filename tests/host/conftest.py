"""An engine on real processes, with short durations, that leaves nothing behind."""

import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from cartdeck import Engine, Settings
from cartdeck.settings import parse_settings
from cartdeck_protocol.caps import build_manifest

DATA = Path(__file__).parent.parent / "data" / "cartridges"
ECHO = Path(__file__).parents[2] / "cartridges" / "cartdeck_echo"
LIMIT_S = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., Settings]:
    """Settings with short durations; keyword arguments are sections that replace single values."""

    def make(**sections: Any) -> Settings:
        table: dict[str, Any] = {
            "cartridge_folders": [str(tmp_path / "cartridges")],
            "stop": {"close_s": 0.5, "term_s": 0.5, "kill_s": 1.0},
            "restart": {"first_s": 0.2, "longest_s": 0.8},
            "call": {"tick_s": 0.05, "cancel_s": 1.0, "abandon_s": 2.0},
        }
        for name, values in sections.items():
            table[name] = {**table.get(name, {}), **values} if isinstance(values, dict) else values
        return parse_settings(table, origin="test")

    return make


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cartridge `shelf` of tests/data, declared in a cartridge folder, as a program of another environment is."""
    declare("shelf", tmp_path, monkeypatch)


@pytest.fixture
def ballast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cartridge `ballast` of tests/data, the same way."""
    declare("ballast", tmp_path, monkeypatch)


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Any cartridge of tests/data that is a package, by its name."""
    return lambda name: declare(name, tmp_path, monkeypatch)


def declare(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DATA / name
    package = tmp_path / "packages" / name
    package.mkdir(parents=True)
    manifest = build_manifest(
        (source / "manifest.toml").read_text("utf-8"),
        lambda alias: path.read_text("utf-8") if (path := source / f"{alias}.toml").exists() else None,
    )
    (package / "manifest.json").write_bytes(manifest.to_json())
    (package / "__init__.py").write_bytes((source / "__init__.py").read_bytes())
    folder = tmp_path / "cartridges" / name
    folder.mkdir(parents=True)
    (folder / "cartridge.toml").write_text(
        f'command = ["{sys.executable}", "-P", "-m", "cartdeck_sdk", "{name}"]\n'
        f'manifest = "{package / "manifest.json"}"\n',
        "utf-8",
    )
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(package.parent), known])))


@pytest.fixture
def hostile(tmp_path: Path) -> Callable[[str], str]:
    """Declare the hostile cartridge in a mode; the cap that reaches it."""

    def declare(mode: str) -> str:
        folder = tmp_path / "cartridges" / mode
        folder.mkdir(parents=True)
        text = (ECHO / "manifest.json").read_text("utf-8")
        text = text.replace('"name": "echo"', f'"name": "{mode}"').replace(";test", f";{mode}")
        (folder / "manifest.json").write_text(text, "utf-8")
        program = (DATA / "hostile" / "program.py").read_text("utf-8")
        (folder / "program.py").write_text(program, "utf-8")
        command = f'["{sys.executable}", "{{folder}}/program.py", "{mode}", "{mode}"]'
        (folder / "cartridge.toml").write_text(f'command = {command}\nmanifest = "manifest.json"\n', "utf-8")
        return f"cap:echo;{mode}"

    return declare


@pytest.fixture
async def engine(quick: Callable[..., Settings], nothing_left: None) -> AsyncIterator[Engine]:
    async with Engine(quick()) as engine:
        yield engine


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No child, no zombie and no descriptor more than before."""
    before = open_descriptors()
    yield
    if open_descriptors() > before + 1:
        gc.collect()  # an error that a test caught holds its frames, and they the files of what failed, in a ring
    end = time.monotonic() + 10.0  # the system may be a moment behind the loop
    while time.monotonic() < end and (child_processes() or open_descriptors() > before + 1):
        time.sleep(0.005)
    assert child_processes() == []
    assert open_descriptors() <= before + 1  # the loop's own are closed behind this


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def child_processes() -> list[int]:
    """The direct children of this process, zombies included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text("ascii").split()]
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def until(condition: Callable[[], Any], *, limit_s: float = LIMIT_S) -> None:
    """Wait until `condition()` holds; fail after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s"
        await anyio.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture
def runs() -> Callable[[int], bool]:
    return is_alive


@pytest.fixture
def children() -> Callable[[], list[int]]:
    return child_processes
