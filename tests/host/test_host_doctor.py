"""What is said of an installation, and what of a dead host's leftovers is swept."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck.doctor.finding import Finding, Health, is_well
from cartdeck.doctor.libraries import examine_extra, examine_llama, wanted_by_extras
from cartdeck.doctor.machine import examine_machine
from cartdeck.doctor.storage import size_bytes
from cartdeck.sessions.leftover import (
    ENGINE_VARIABLE,
    end_orphans,
    engine_mark,
    is_mark_dead,
    private_folder,
    remove_dead_folders,
)
from cartdeck.sessions.network_cut import network_cut

BUILT = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 0 | OPENMP = 1 | "


@pytest.mark.parametrize(
    ("status", "printed", "flags", "health", "words"),
    [
        (-4, "", {"pni"}, Health.PROBLEM, "signal 4"),
        (1, "Traceback\nImportError: no libgomp", {"pni"}, Health.PROBLEM, "ImportError: no libgomp"),
        (0, BUILT, {"pni", "avx", "avx2"}, Health.PROBLEM, "uses AVX512, which this one does not have"),
        (0, BUILT, {"pni", "avx", "avx2", "avx512f", "avx512_vnni"}, Health.NOTE, "does not use AVX512_VNNI"),
        (0, BUILT, {"pni", "avx", "avx2", "avx512f"}, Health.GOOD, "built for this CPU"),
        (0, BUILT, set[str](), Health.GOOD, "cannot be told"),
        (0, "CPU : NEON = 1 | ", {"asimd"}, Health.GOOD, "cannot be told"),
    ],
)
def test_a_build_of_llama_is_held_against_the_cpu(
    status: int, printed: str, flags: set[str], health: Health, words: str
) -> None:
    finding = examine_llama((status, printed), flags)
    assert finding.health is health
    assert words in finding.said
    assert bool(finding.remedy) == (health is not Health.GOOD)


def test_an_extra_whose_libraries_are_too_old_or_too_new_is_no_more_whole_than_one_that_lacks_them() -> None:
    good = examine_extra("models", [("filelock", "3.13", ">=3.13"), ("httpx2", "2.9.1", "<3,>=2"), ("torch", "1", "")])
    assert good == Finding(topic="extra models", said="filelock 3.13, httpx2 2.9.1, torch 1")
    bad = examine_extra("torch", [("torch", None, ">=2"), ("transformers", "4.57.1", "<6,>=5.17"), ("soxr", "1", "")])
    assert bad.said == "lacks torch; transformers 4.57.1 is installed, wanted is <6,>=5.17"
    assert (bad.health, bad.remedy) == (Health.NOTE, "pip install 'cartdeck[torch]'")


def test_what_extras_want_is_read_from_the_metadata() -> None:
    lines = [
        "anyio>=4.4",
        "pip>=24.1; extra == 'models'",
        "httpx2<3,>=2 ; python_version > '3' and extra == \"models\"",
        "uvicorn[standard] (>=0.35); extra == 'server'",
        "torch; extra == 'torch'",
        "torch>=2; extra == 'all'",
    ]
    assert wanted_by_extras(lines) == {
        "models": [("pip", ">=24.1"), ("httpx2", "<3,>=2")],
        "server": [("uvicorn", ">=0.35")],
        "torch": [("torch", "")],
    }


def test_what_can_be_lived_without_is_no_problem() -> None:
    note = Finding(topic="a", said="b", health=Health.NOTE)
    assert is_well([Finding(topic="a", said="b"), note])
    assert not is_well([note, Finding(topic="a", said="b", health=Health.PROBLEM)])


def test_the_machine_is_examined_topic_by_topic() -> None:
    topics = [finding.topic for finding in examine_machine()]
    assert topics == ["interpreter", "compiler", "pip", "memory", "network isolation", "death signal"]


def test_isolation_that_is_turned_off_is_said_to_be_off() -> None:
    (found,) = (one for one in examine_machine(is_cut_wanted=False) if one.topic == "network isolation")
    assert (found.health, "turned off" in found.said) == (Health.NOTE, True)


def test_a_file_with_two_names_is_counted_once(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(os.urandom(100_000))  # a file system may pack others, and take its blocks when they are written out
        os.fsync(file)
    once = size_bytes(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert size_bytes(tmp_path) == once >= 100_000


def test_a_process_that_is_cut_off_sees_no_network() -> None:
    cut = network_cut()
    if not cut.is_possible:
        assert cut.reason
        pytest.skip(f"not possible here: {cut.reason}")
    program = "import socket; print([name for _, name in socket.if_nameindex()])"
    done = subprocess.run(
        [*cut.prefix, sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"lo"}


@pytest.fixture
def dead_mark() -> str:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=30)
    return dead(child.pid)


def dead(pid: int) -> str:
    """The mark of a host that had this id, long ago."""
    return f"{pid}-1-{engine_mark().rpartition('-')[2]}"


def test_a_mark_is_dead_when_its_host_is(dead_mark: str) -> None:
    assert not is_mark_dead(engine_mark())
    assert is_mark_dead(dead_mark)
    assert is_mark_dead(dead(os.getpid())), "another process that got the same number"
    assert not is_mark_dead("what is that")
    assert not is_mark_dead(f"{dead_mark}0"), "a host in another container may well live"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_host_is_not_dead_where_nobody_can_look_or_on_another_machine() -> None:
    program = """
import os, platform, resource
from cartdeck.sessions import leftover
mark = leftover.engine_mark()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 64))  # no file can be opened any more
print(leftover.is_mark_dead(mark))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
node = platform.node()
platform.node = lambda: f"not-{node}"  # another machine, with a namespace of the same number
leftover._place.cache_clear()
print(leftover.is_mark_dead(f"{os.getpid()}-1-{mark.rpartition('-')[2]}"))
"""
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert asked.stdout.split() == ["False", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_what_dead_hosts_left_is_swept_and_nothing_else(
    dead_mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = private_folder()
    (tmp_path / f"cartdeck-{dead_mark}-abc").mkdir()
    (tmp_path / f"cartdeck-{dead_mark}-abc" / "file").touch()
    (tmp_path / "cartdeck-notes").mkdir()
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    orphan, child = (
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, env={**os.environ, ENGINE_VARIABLE: mark})
        for mark in (dead_mark, engine_mark())
    )
    with orphan, child:
        end_orphans()  # a doctor that another process calls may be quicker
        assert orphan.wait(timeout=30) == -9
        assert child.poll() is None
        child.kill()
    assert remove_dead_folders() == 1
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, "cartdeck-notes"}


def test_an_engine_sweeps_the_folders_of_dead_hosts_when_it_starts(
    dead_mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, mine = tmp_path / f"cartdeck-{dead_mark}-abc", private_folder()
    elsewhere = tmp_path / f"cartdeck-{dead_mark}0-abc"
    for folder in (left, elsewhere):
        folder.mkdir()
        (folder / "file").touch()

    async def run() -> None:
        async with Engine(Settings()):
            await wait_until(lambda: not left.exists())

    asyncio.run(run())
    assert mine.is_dir()
    assert (elsewhere / "file").exists()


def test_the_command_names_each_problem_and_what_mends_it(tmp_path: Path) -> None:
    folder = tmp_path / "cartridges" / "odd"
    folder.mkdir(parents=True)
    (folder / "cartridge.toml").write_text('command = ["no-such-program-here"]\n', "utf-8")
    config = tmp_path / "config.toml"
    config.write_text(f'cartridge_folders = ["{tmp_path / "cartridges"}"]\n', "utf-8")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "cartdeck"), "doctor", "--json"],
        env={**os.environ, "CARTDECK_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    told = json.loads(done.stdout)
    assert not told["is_well"]
    by_topic = {finding["topic"]: finding for finding in told["findings"]}
    assert "no-such-program-here" in by_topic["cartridge ?"]["said"]
    assert by_topic["cartridge ?"]["remedy"]
    assert "handshake in order" in by_topic["cartridge echo"]["said"]
