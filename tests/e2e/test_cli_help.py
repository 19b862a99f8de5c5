"""`cartdeck help` and `-h` are `--help`, and what is wrongly asked names the help of its command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
IMAGE = str(Path(__file__).resolve().parent.parent / "data" / "gguf" / "shapes" / "red_circle.png")


@pytest.mark.parametrize("words", [[], ["pull"], ["plan", "run"]])
def test_help_is_asked_for_by_a_word_or_a_letter_too(words: list[str]) -> None:
    said = [
        subprocess.run([CARTDECK, *command], capture_output=True, text=True, timeout=60, check=True).stdout
        for command in (["help", *words], [*words, "-h"], [*words, "--help"])
    ]
    assert said[0] == said[1] == said[2]
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["new", "shout", "--language", "node"], "`cartdeck new cartridge shout --language node`"),
        (["new", "cartrige", "shout"], "Did you mean 'cartridge'?"),
        (["new", "cartridge", "echo"], "echo is here already, from the package cartdeck_echo; choose another name"),
        (["pull", "https://huggingface.co/owner/name"], "write hf:owner/name."),
        (["info", "no-such-model"], "There is no model 'no-such-model'. SPEC takes hf:…"),
        *(
            ([*command, "--model", "no-such-model"], "There is no model 'no-such-model'. --model takes a name of the")
            for command in (
                ["generate", "x"],
                ["chat"],
                ["embed", "x"],
                ["describe", IMAGE],
                ["transcribe", __file__],
            )
        ),
    ],
)
def test_what_is_wrong_at_once_is_told_at_once_with_what_to_write(words: list[str], said: str, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [CARTDECK, *words], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "starting" not in done.stderr
    assert not (tmp_path / "echo").exists()


def test_a_plan_is_drawn_in_the_form_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_text("x -> echo -> y\n")
    for form, beginning in (("svg", "<svg "), ("mermaid", "flowchart "), ("json", "{"), ("text", "")):
        command = [CARTDECK, "plan", "show", "a.plan", "--format", form]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        assert done.stdout.startswith(beginning)
