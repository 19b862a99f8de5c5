"""The commands that explain: help, caps, cartridges, config."""

import json
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cartdeck import __version__
from cartdeck_protocol.caps import load_shared_definition

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
COMMANDS = (
    *(["demo"], ["generate"], ["call"], ["pull"], ["models"], ["verify"], ["rm"]),
    *(["caps"], ["cartridges"], ["cartridges", "reset"], ["config", "show"]),
    *(["catalog", "check"], ["catalog", "show"], ["catalog", "add"], ["catalog", "remove"]),
)
HELP_SHARE = 5.0
"""How many times the import of typer help may take: two and a half times what it does."""


def cartdeck(*arguments: str, **environment: str) -> str:
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "COLUMNS": "120", **environment}
    done = subprocess.run(
        [CARTDECK, *arguments], capture_output=True, text=True, timeout=60, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_shows_an_example(command: list[str]) -> None:
    assert "Example: cartdeck" in cartdeck(*command, "--help")


def test_help_comes_at_once() -> None:
    """Held to the time of the CPU, and to what a library that it cannot do without takes there: what else a machine
    does makes a command slow, not dear, and a slow machine is slow with both."""

    def measure(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    library_s = min(measure(sys.executable, "-c", "import typer") for _ in range(5))
    assert min(measure(CARTDECK, "--help") for _ in range(5)) < HELP_SHARE * library_s


def test_without_a_command_the_help_is_shown() -> None:
    assert cartdeck() == cartdeck("--help")


@pytest.mark.parametrize("group", ["plan", "config", "catalog"])
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    assert cartdeck(group) == cartdeck(group, "--help")


@pytest.mark.parametrize("command", [["pull"], ["verify"], ["embed"], ["plan", "run"]], ids=" ".join)
def test_an_example_stays_in_one_line_of_a_narrow_terminal(command: list[str]) -> None:
    example = next(line for line in cartdeck(*command, "--help", COLUMNS="40").splitlines() if "Example: " in line)
    assert len(example) > 40


def test_the_help_of_the_commands_is_not_cut_off() -> None:
    for group in ([], ["plan"], ["config"], ["cartridges"]):
        assert "..." not in cartdeck(*group, "--help", COLUMNS="80").split("Commands:")[1]


def test_the_version_is_the_distributions() -> None:
    assert cartdeck("--version") == f"cartdeck {__version__}\n"


def test_caps_are_lines_for_a_program_and_records_as_json() -> None:
    lines = [line.split("\t") for line in cartdeck("caps").splitlines()]
    assert {"echo", "generate-text", "download-model"} <= {line[0] for line in lines}
    assert {len(line) for line in lines} == {4}
    records = json.loads(cartdeck("caps", "--json"))["caps"]
    assert [record["urn"] for record in records] == [line[3] for line in lines]


def test_a_cap_is_explained_with_its_arguments_and_defaults() -> None:
    text = cartdeck("caps", "generate-text")
    assert re.search(r"max-tokens .*default 512", text)
    assert re.search(r"prompt .*required", text)
    record = json.loads(cartdeck("caps", "generate-text", "--json"))
    assert record["alias"] == "generate-text"
    assert record["cartridges"][0]["name"] == "gguf"


def test_cartridges_are_listed_with_their_state() -> None:
    states = {line.split("\t")[0]: line.split("\t")[2] for line in cartdeck("cartridges").splitlines()}
    assert states["echo"] == "available"
    assert states["models"].startswith(("available", "unavailable: lacks "))
    assert {one["name"] for one in json.loads(cartdeck("cartridges", "--json"))["cartridges"]} >= {
        "echo",
        "models",
        "gguf",
    }


def test_a_broken_cartridge_is_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "cartridge.toml").write_text("command = []\n")
    (tmp_path / "config.toml").write_text(f'cartridge_folders = ["{tmp_path}"]\n')
    listed = json.loads(cartdeck("cartridges", "--json", CARTDECK_CONFIG=str(tmp_path / "config.toml")))
    (broken,) = listed["broken"]
    assert broken["origin"].startswith(str(tmp_path))
    assert broken["error"]["message"]


def test_the_settings_are_shown_as_the_toml_that_gives_them(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[call]\nsilence_s = 7.5\n")
    shown = cartdeck("config", "show", CARTDECK_CONFIG=str(tmp_path / "config.toml"))
    assert str(tmp_path) in shown.splitlines()[0]
    assert tomllib.loads(shown)["call"]["silence_s"] == 7.5
    (tmp_path / "again.toml").write_text(shown)
    again = cartdeck("config", "show", CARTDECK_CONFIG=str(tmp_path / "again.toml"))
    assert again.splitlines()[1:] == shown.splitlines()[1:]
    assert json.loads(cartdeck("config", "show", "--json"))["settings"]["call"]


def test_generate_has_an_option_for_every_argument_of_its_cap() -> None:
    offered = set(re.findall(r"--[a-z-]+", cartdeck("generate", "--help")))
    arguments = load_shared_definition("generate-text").arguments.values()
    assert {f"--{argument.name}" for argument in arguments if not argument.is_main} <= offered


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["genrate"], "Did you mean 'generate'? `cartdeck --help`"),
        (["generate", "-5 degrees"], "A text that begins with - stands at the end, after --."),
        (["-v"], "No such option: -v. `cartdeck --help`"),
        (["generate", "hi", "--log-json"], "stands before the command: cartdeck --log-json COMMAND."),
        (["transcribe", "x.wav", "--format", "doc"], "'--format': 'doc' is not one of"),
    ],
)
def test_what_is_misspelt_is_answered_with_what_to_write(arguments: list[str], said: str) -> None:
    done = subprocess.run([CARTDECK, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
