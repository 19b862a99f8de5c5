"""`cartdeck help` is `cartdeck --help`."""

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
