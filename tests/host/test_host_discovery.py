"""Discovery: manifests are read as files, nothing is imported, and a broken cartridge stops nobody."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck.discovery import BrokenCartridge, discover
from cartdeck_protocol.caps import build_manifest
from cartdeck_protocol.errors import CartdeckError, Code

MANIFEST = build_manifest(
    'name = "mine"\nversion = "1.0.0"\ntitle = "T"\ndescription = "D"\ncaps = ["model-info"]\nholds_instances = true\n'
).to_json()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cartridges" / "mine"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def broken(settings: Settings) -> BrokenCartridge:
    found = [one for one in discover(settings).broken if one.origin.endswith("cartridge.toml")]
    assert len(found) == 1
    return found[0]


def test_the_cartridges_of_this_environment_are_found(quick: Callable[..., Settings]) -> None:
    found = discover(quick())
    echo = next(one for one in found.cartridges if one.name == "echo")
    assert echo.command == (sys.executable, "-P", "-m", "cartdeck_sdk", "cartdeck_echo")
    assert echo.is_available
    assert echo.is_child_of_host


def test_nothing_is_imported_on_the_way() -> None:
    program = (
        "import sys; from cartdeck.discovery import discover; from cartdeck.settings import Settings; "
        "found = discover(Settings(cartridge_folders=())); assert found.cartridges; "
        "bad = {m for m in sys.modules if m.startswith(('cartdeck_sdk', 'cartdeck_echo', 'cartdeck_gguf', 'llama'))}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_cartridge_of_another_language_is_declared_by_a_file(quick: Callable[..., Settings], folder: Path) -> None:
    (folder / "manifest.json").write_bytes(MANIFEST)
    (folder / "cartridge.toml").write_text('command = ["sh", "{folder}/run.sh"]\nmanifest = "manifest.json"\n', "utf-8")
    mine = next(one for one in discover(quick()).cartridges if one.name == "mine")
    assert mine.command[-2:] == ("sh", f"{folder}/run.sh")
    assert not mine.is_child_of_host


def test_a_program_beside_its_file_is_named_by_a_relative_path(
    quick: Callable[..., Settings], folder: Path, cache: Path
) -> None:
    runs = folder / "runs"
    program = folder / "program"
    program.write_text(f"#!/bin/sh\necho run >> '{runs}'\ncat '{folder / 'own.json'}'\n", "utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "own.json").write_bytes(MANIFEST)
    (folder / "cartridge.toml").write_text('command = ["./program"]\n', "utf-8")
    for _ in range(3):
        assert any(one.name == "mine" for one in discover(quick()).cartridges)
    assert runs.read_text("utf-8") == "run\n", "the manifest of a program is asked for once"
    program.write_text(program.read_text("utf-8") + "# changed\n", "utf-8")
    assert any(one.name == "mine" for one in discover(quick()).cartridges)
    assert runs.read_text("utf-8") == "run\nrun\n"
    assert list(cache.rglob("*.json"))


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("command = [", Code.BAD_ARGUMENT, "is not TOML"),
        ('comand = ["sh"]', Code.BAD_ARGUMENT, "comand is unknown; known: command, environment"),
        ("command = []", Code.BAD_ARGUMENT, "must be a list of texts"),
        ('command = "sh"', Code.BAD_ARGUMENT, "must be a list of texts"),
        ('command = ["no-such-program-here"]', Code.FILE_NOT_FOUND, "there is no program no-such-program-here"),
        ('command = ["sh"]\nmanifest = "absent.json"', Code.FILE_NOT_FOUND, "absent.json cannot be read"),
        ('command = ["sh"]\nmanifest = "cartridge.toml"', Code.MANIFEST_DRIFT, "cartridge.toml"),
        ('command = ["false"]', Code.START_FAILED, "false manifest"),
        ('command = ["sh"]\nmanifest = "a\\u0000b"', Code.BAD_ARGUMENT, "without NUL"),
        ('command = ["sh", "a\\u0000b"]', Code.BAD_ARGUMENT, "without NUL"),
        ("command = " + "[" * 5000 + "]" * 5000, Code.BAD_ARGUMENT, "is not TOML"),
        ("command = " + "1" * 5000, Code.BAD_ARGUMENT, "is not TOML"),
    ],
)
def test_a_broken_declaration_is_reported(
    quick: Callable[..., Settings], folder: Path, cache: Path, text: str, code: Code, words: str
) -> None:
    (folder / "cartridge.toml").write_text(text, "utf-8")
    one = broken(quick())
    assert one.error.code is code
    assert words in one.error.message
    assert any(found.name == "echo" for found in discover(quick()).cartridges)


def test_a_cap_that_nobody_serves_is_refused_with_the_cartridges_that_could_not_be_read(
    quick: Callable[..., Settings], folder: Path
) -> None:
    (folder / "cartridge.toml").write_text('command = ["sh"]\nmanifest = "absent.json"', "utf-8")
    with (
        cartdeck.open(quick()) as engine,
        pytest.raises(CartdeckError, match="1 cartridge could not be read") as caught,
    ):
        engine.run("cap:mine")
    assert caught.value.details["unread"] == [str(folder / "cartridge.toml")]


def test_a_manifest_with_half_a_character_is_broken(quick: Callable[..., Settings], folder: Path) -> None:
    (folder / "manifest.json").write_bytes(MANIFEST.replace(b'"title": "T"', b'"title": "\\ud800"'))
    (folder / "cartridge.toml").write_text('command = ["sh"]\nmanifest = "manifest.json"\n', "utf-8")
    one = broken(quick())
    assert one.error.code is Code.MANIFEST_DRIFT
    assert "surrogate" in one.error.message


def test_a_name_that_is_taken_stays_with_the_first(quick: Callable[..., Settings], folder: Path) -> None:
    (folder / "manifest.json").write_bytes(MANIFEST.replace(b'"mine"', b'"echo"'))
    (folder / "cartridge.toml").write_text('command = ["sh"]\nmanifest = "manifest.json"\n', "utf-8")
    assert "was already found at the package cartdeck_echo" in broken(quick()).error.message


def test_a_cartridge_whose_library_is_missing_is_listed_with_the_command_that_brings_it(
    quick: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "lacking"
    package.mkdir(parents=True)
    need = b'"requires": [{"module": "no_such_library", "install": "pip install no-such-library"},'
    need += b' {"module": "nor_this", "install": "pip install no-such-library"}]'
    text = MANIFEST.replace(b'"mine"', b'"lacking"').replace(b'"requires": []', need)
    (package / "manifest.json").write_bytes(text)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n", "utf-8")
    metadata = tmp_path / "site" / "lacking-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lacking\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text(
        "[cartdeck.cartridges]\nlacking = lacking\nabsent = not_there\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = discover(quick())
    lacking = next(one for one in found.cartridges if one.name == "lacking")
    assert not lacking.is_available
    assert lacking.missing_text == "no_such_library and nor_this (bring them with: pip install no-such-library)"
    absent = next(one for one in found.broken if one.origin == "the package not_there")
    assert absent.error.code is Code.CARTRIDGE_UNAVAILABLE
