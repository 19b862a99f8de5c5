"""Everything in README.md that can be run is run, and everything it names is there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cartdeck.cli import exit_codes
from cartdeck.cli.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
SERVER = "http://127.0.0.1:8080"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    line: str
    expected: str | None
    """What it prints on standard output; up to an ellipsis, when it has one. None: anything."""


def blocks(language: str) -> list[str]:
    return [text for found, text in FENCE.findall(README) if found == language]


def commands() -> Iterator[Command]:
    for text in blocks("sh"):
        for line in text.splitlines():
            yield Command(line.partition("    #")[0].strip(), None)
    for text in blocks("console"):
        for part in text.removeprefix("$ ").split("\n$ "):
            line, _, printed = part.partition("\n")
            yield Command(line, printed)


@contextmanager
def serving(program: str) -> Iterator[str]:
    """The program, and while it runs the server that it asks, at an address of the test's own."""
    if SERVER not in program:
        yield program
        return
    command = [str(Path(sys.executable).with_name("cartdeck")), "serve", "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield program.replace(SERVER, json.loads(server.stdout.readline())["url"])
        finally:
            server.terminate()
        assert server.wait(30) == 0


SHOWN = [one for one in commands() if not one.line.startswith("make ")]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.model
@pytest.mark.timeout(330)
@pytest.mark.parametrize("command", SHOWN, ids=lambda one: one.line[:40])
def test_a_command_of_the_readme_does_what_it_shows(command: Command, tmp_path: Path) -> None:
    done = run(["bash", "-c", command.line], tmp_path)
    assert done.returncode == 0, done.stderr
    if command.expected is not None:
        beginning, ellipsis, _ = command.expected.partition("…")
        assert done.stdout.startswith(beginning) if ellipsis else done.stdout.strip() == command.expected.strip()


@pytest.mark.model
@pytest.mark.timeout(330)
@pytest.mark.parametrize("program", blocks("python"))
def test_a_program_of_the_readme_runs(program: str, tmp_path: Path) -> None:
    with serving(program) as asking:
        done = run([sys.executable, "-W", "error", "-P", "-c", asking], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_the_readme_shows_commands_and_programs() -> None:
    assert len(SHOWN) >= 8
    assert len(blocks("python")) == 4


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake (demo|test|check|bench)\b", README))))
def test_a_target_that_the_readme_names_is_in_the_makefile(target: str, tmp_path: Path) -> None:
    done = run(["make", "--dry-run", "-C", str(ROOT), target, f"VENV={tmp_path / 'venv'}"], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["LLAMA", "VENV", "CMAKE_ARGS"])
def test_a_variable_that_the_readme_names_is_in_the_makefile(variable: str) -> None:
    assert f"{variable}=" in README
    assert f"$({variable})" in (ROOT / "Makefile").read_text("utf-8") or variable == "CMAKE_ARGS"


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_a_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_table_of_exit_codes_is_complete() -> None:
    tabled = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE) for code in row.split(",")}
    assert tabled == {int(code) for code in ExitCode}
    assert exit_codes.__doc__ is not None
    assert all(re.search(rf"\b{int(code)}\b", exit_codes.__doc__) for code in ExitCode)
