"""A new cartridge: its cap from a URN, its names, and files that appear whole or not at all."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck.cartridge_file import read_cartridge_file
from cartdeck.scaffold.cap_shape import shape_of
from cartdeck.scaffold.new_cartridge import new_cartridge
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_sdk.manifest import generate

CAPS = [
    None,
    'cap:look;in="media:image";out="media:fmt=json;record;thing"',
    'cap:count;in=media:void;out="media:integer;numeric"',
    'cap:keep;in="media:enc=utf-8;fmt=json;list";out=media:void',
    'cap:in=media:;out="media:blob";squeeze',
    'cap:weigh;in="media:numeric";out="media:boolean"',
    'cap:sort;in="media:fmt=json;list;record";out="media:fmt=json;list"',
    "cap:class=7;out=media:void",
]


@pytest.mark.parametrize("cap", CAPS)
def test_what_is_written_for_any_cap_is_whole(tmp_path: Path, cap: str | None) -> None:
    folder = tmp_path / "made"
    paths = new_cartridge("some-thing", cap=cap, language="python", folder=folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == paths
    handlers = (folder / "some_thing" / "handlers.py").read_text("utf-8")
    ast.parse(handlers)
    assert "%%" not in "".join(path.read_text("utf-8") for path in folder.rglob("*") if path.is_file())
    manifest = Manifest.from_json((folder / "some_thing" / "manifest.json").read_bytes())
    assert len(manifest.samples) == 1
    checked = subprocess.run(
        [sys.executable, "-m", "cartdeck_sdk.manifest", "some_thing", "--check"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("cap", CAPS)
def test_what_is_written_in_node_is_whole(tmp_path: Path, cap: str | None) -> None:
    folder = tmp_path / "made"
    new_cartridge("some-thing", cap=cap, language="node", folder=folder)
    assert "%%" not in "".join(path.read_text("utf-8") for path in folder.rglob("*") if path.is_file())
    manifest = (folder / "manifest.json").read_bytes()
    assert generate(str(folder)) == manifest
    read_cartridge_file(folder / "cartridge.toml", (folder / "cartridge.toml").read_bytes())
    assert sum(len(path.read_text("utf-8").splitlines()) for path in folder.glob("*.mjs")) < 300


def test_a_cap_is_called_by_the_first_tag_that_stands_for_itself() -> None:
    assert shape_of('cap:size=3;read-signs;english;in="media:image"', name="mine").alias == "read-signs"
    assert shape_of("cap:size=3;in=media:image", name="mine").alias == "mine"


@pytest.mark.parametrize("name", ["Shout", "two--hyphens", "7up", "", "json", "class", "cartdeck", "a/b", "a" * 81])
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        new_cartridge(name, cap=None, language="python", folder=tmp_path / "made")
    assert caught.value.code is Code.BAD_ARGUMENT
    assert not (tmp_path / "made").exists()


def test_a_text_that_is_no_urn_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(CartdeckError, match="at character") as caught:
        new_cartridge("mine", cap='cap:x;in="media:', language="python", folder=tmp_path / "made")
    assert caught.value.argument == "--cap"


def test_what_is_there_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "letter.txt").write_text("dear reader", "utf-8")
    with pytest.raises(CartdeckError, match="is there already"):
        new_cartridge("mine", cap=None, language="python", folder=tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["letter.txt"]
