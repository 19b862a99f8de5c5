"""`cartdeck check` on a cartridge that a cartridge.toml declares: started as a host would start it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
ECHO = Path(__file__).parents[2] / "cartridges" / "cartdeck_echo" / "manifest.json"
LIMIT_S = 100
SERVE = f"""#!/bin/sh
place=$(dirname "$0")
pwd > "$place/where"
env > "$place/environment"
exec '{sys.executable}' -P -m cartdeck_sdk cartdeck_echo
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cartridge, not installed, that writes down where it was started and with what."""
    made = tmp_path / "a cartridge"
    (made / "inside").mkdir(parents=True)
    (made / "serve.sh").write_text(SERVE, "utf-8")
    (made / "serve.sh").chmod(0o755)
    manifest = {**json.loads(ECHO.read_bytes()), "name": "parrot"}
    (made / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (made / "cartridge.toml").write_text(
        'command = ["./serve.sh"]\nmanifest = "manifest.json"\nworking_directory = "inside"\n'
        'environment = ["PARROT_*"]\n',
        "utf-8",
    )
    return made


def cartdeck(folder: Path, *words: str, status: int = 0, stream: str = "") -> str:
    config = folder.parent / "config.toml"
    config.write_text(f'cartridge_folders = ["{folder.parent / "registered"}"]\n', "utf-8")
    environment = {**os.environ, "CARTDECK_CONFIG": str(config), "PARROT_COLOR": "red", "SECRET_OF_THE_SHELL": "s3cret"}
    done = subprocess.run(
        [CARTDECK, *words],
        cwd=folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done.stderr if stream == "stderr" else done.stdout or done.stderr


@pytest.mark.parametrize("word", ["./a cartridge", "a cartridge/cartridge.toml"])
def test_a_folder_is_checked_in_its_working_directory_with_the_environment_of_its_list(folder: Path, word: str) -> None:
    assert "1 passed of 1 checks" in cartdeck(folder, "check", word, "--only", "1")
    assert (folder / "where").read_text("utf-8").endswith("/a cartridge/inside\n")
    environment = (folder / "environment").read_text("utf-8")
    assert "PARROT_COLOR=red" in environment
    assert "SECRET_OF_THE_SHELL" not in environment


def test_a_registered_cartridge_is_checked_in_its_working_directory_by_its_name_too(folder: Path) -> None:
    cartdeck(folder, "install", "./a cartridge")
    assert "1 passed of 1 checks" in cartdeck(folder, "check", "parrot", "--only", "1")
    assert (folder / "where").read_text("utf-8").endswith("/inside\n")
    assert "SECRET_OF_THE_SHELL" not in (folder / "environment").read_text("utf-8")


def test_a_sample_that_names_no_value_is_an_error_about_its_own_option(folder: Path) -> None:
    told = cartdeck(folder, "check", "echo", "--sample", "echo.data", status=2)
    assert "expected --sample CAP.NAME=VALUE" in told


def test_a_folder_whose_cartridge_has_the_name_of_another_is_registered_and_told(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(ECHO.read_bytes())
    done = cartdeck(folder, "install", "./a cartridge", "--quiet")
    assert done.endswith("a cartridge\n")
    told = cartdeck(folder, "install", "./a cartridge", stream="stderr")
    assert "not used: a cartridge named echo was already found" in told


def test_a_folder_that_cannot_be_checked_says_what_is_wrong_with_it(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    assert "manifest.json cannot be read" in cartdeck(folder, "check", "./a cartridge", status=2)
    (folder / "cartridge.toml").write_text("command = 1\n", "utf-8")
    assert "command must be a list of texts" in cartdeck(folder, "check", "./a cartridge", status=2)
    (folder / "cartridge.toml").unlink()
    assert "neither cartridge.toml nor pyproject.toml" in cartdeck(folder, "check", "./a cartridge", status=2)
    (folder / "pyproject.toml").touch()
    assert "pip install -e './a cartridge', then" in " ".join(
        cartdeck(folder, "check", "./a cartridge", status=2).split()
    )
    assert "'./nothing' does not exist." in cartdeck(folder, "check", "./nothing", status=2)
    assert "nor a folder with cartridge.toml" in cartdeck(folder, "check", "nothing", status=2)
