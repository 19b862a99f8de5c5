"""`cartdeck help` is `cartdeck --help`, and what is wrongly asked names the help of its command."""

import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))


@pytest.mark.parametrize("words", [[], ["pull"], ["plan", "run"]])
def test_help_is_asked_for_by_a_word_too(words: list[str]) -> None:
    said = [
        subprocess.run([CARTDECK, *command], capture_output=True, text=True, timeout=60, check=True).stdout
        for command in (["help", *words], [*words, "--help"])
    ]
    assert said[0] == said[1]
    assert said[0].startswith("Usage: " + " ".join(["cartdeck", *words]))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["generate", "hi", "--stop"], "cartdeck generate"),
        (["--log-json", "generate", "plan", "--stop"], "cartdeck generate"),
        (["plan", "run", "run", "--timeout"], "cartdeck plan run"),
        (["fly", "--far"], "cartdeck"),
    ],
)
def test_an_option_without_its_value_points_to_the_help_of_its_command(words: list[str], command: str) -> None:
    done = subprocess.run([CARTDECK, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"`{command} --help`" in " ".join(done.stderr.split())
