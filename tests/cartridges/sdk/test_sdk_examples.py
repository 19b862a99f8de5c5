"""The examples of cartridges/README.md, one cartridge made of all of them: each does what the text beside it says."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Data, Engine, Progress
from cartdeck.settings import parse_settings
from cartdeck_conformance import Options, check_cartridge
from cartdeck_protocol.caps import build_manifest

pytestmark = pytest.mark.anyio

README = (Path(__file__).resolve().parents[3] / "cartridges" / "README.md").read_text("utf-8")
PAGE = README.partition("## One example for each need")[2].partition("\n## ")[0]
HEAD = """
import asyncio
import hashlib
import json

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Report, Request, WorkerOutput

cartridge = Cartridge("page")
"""
TEXT_IN = '"media:enc=utf-8;text"'
# alias → (urn's input and output, further arguments, further outputs)
DEFINITIONS: dict[str, tuple[str, str, str]] = {
    "spell": (TEXT_IN, "", ""),
    "repeat": (
        TEXT_IN,
        '[arguments.times]\nmedia = "media:integer;numeric;times"\ndefault = 2\ndocumentation = "T."\n'
        '[arguments.between]\nmedia = "media:between;enc=utf-8"\ndefault = "-"\ndocumentation = "B."',
        "",
    ),
    "initials": (
        TEXT_IN, "", '[outputs.counts]\nmedia = "media:counts;fmt=json;record"\ndocumentation = "Counts."',
    ),
    "bake": ("media:void", "", ""),
    "digest": (
        '"media:blob"', '[arguments.rounds]\nmedia = "media:integer;numeric;rounds"\ndefault = 3\ndocumentation = "R."',
        "",
    ),
    "reverse": (TEXT_IN, "", ""),
    "ask-around": (TEXT_IN, "", ""),
    "halve": ('"media:integer;number;numeric"', "", ""),
    "count": ("media:void", "", ""),
    "wait": (
        "media:void", '[arguments.seconds]\nmedia = "media:numeric;seconds"\ndefault = 60\ndocumentation = "S."', ""
    ),
}  # fmt: skip  # a table
MAIN = {"digest": "data", "halve": "number"}
LENGTHS = """
urn = 'cap:in="media:enc=utf-8;word";lengths;out="media:integer;length;numeric"'
title = "Lengths"
documentation = "Lengths of words."
[arguments.words]
is_main = true
is_sequence = true
required = true
documentation = "Words."
[output]
is_sequence = true
documentation = "Lengths."
"""


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def definition(alias: str) -> str:
    if alias == "lengths":
        return LENGTHS
    given, arguments, outputs = DEFINITIONS[alias]
    main = "" if given == "media:void" else (
        f'[arguments.{MAIN.get(alias, "text")}]\nis_main = true\nrequired = true\ndocumentation = "The input."\n'
    )  # fmt: skip  # one expression
    return (
        f"urn = 'cap:{alias};in={given};out=\"media:enc=utf-8;answer\"'\n"
        f'title = "{alias}"\ndocumentation = "An example."\n{main}{arguments}\n'
        f'[output]\ndocumentation = "The answer."\n{outputs}\n'
    )


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the cartridge of all the examples is declared in; its package lies on the module path."""
    folder = tmp_path_factory.mktemp("page")
    package = folder / "packages" / "page"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(HEAD + "\n\n".join(code_blocks("python")), "utf-8")
    aliases = ["lengths", *DEFINITIONS]
    toml = '\n'.join([
        'name = "page"', 'version = "1.0.0"', 'title = "Page"', 'description = "The examples."', f"caps = {aliases}",
        *code_blocks("toml"), '[samples.spell]\ntext = "hi"\n[samples.lengths]\nwords = ["a", "bcd"]',
        '[samples.bake]\n[samples.digest]\ndata = "x"\n[samples.halve]\nnumber = 4\n[samples.initials]\ntext = "a b"',
    ])  # fmt: skip  # a file
    manifest = build_manifest(toml, lambda alias: definition(alias) if alias in aliases else None).to_json()
    (package / "manifest.json").write_bytes(manifest)
    place = folder / "cartridges" / "page"
    place.mkdir(parents=True)
    (place / "manifest.json").write_bytes(manifest)
    command = ", ".join(f'"{part}"' for part in (sys.executable, "-P", "-m", "cartdeck_sdk", "page"))
    (place / "cartridge.toml").write_text(f'command = [{command}]\nmanifest = "manifest.json"\n', "utf-8")
    return folder


@pytest.fixture(scope="module")
async def engine(page: Path) -> AsyncIterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        known = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(page / "packages"), known])))
        settings = parse_settings({"cartridge_folders": [str(page / "cartridges")]}, origin="test")
        async with Engine(settings) as running:
            yield running


def test_each_handler_of_the_page_is_called_by_a_test_here() -> None:
    shown = re.findall(r'@cartridge\.handles\("([a-z-]+)"', PAGE)
    source = Path(__file__).read_text("utf-8")
    assert set(shown) == {"lengths", *DEFINITIONS}
    assert [alias for alias in shown if f'("{alias}"' not in source] == []


async def test_text_goes_in_and_a_stream_comes_out(engine: Engine) -> None:
    assert (await engine.run("spell", {"text": "abc"}, timeout_s=30)).text == "a b c "
    assert (await engine.run("reverse", {"text": "abc"}, timeout_s=30)).text == "cba"


async def test_arguments_have_the_defaults_of_the_manifest(engine: Engine) -> None:
    assert (await engine.run("repeat", {"text": "a"}, timeout_s=30)).text == "a-a"
    assert (await engine.run("repeat", {"text": "a", "times": 3, "between": ""}, timeout_s=30)).text == "aaa"


async def test_a_sequence_goes_in_and_one_comes_out(engine: Engine, tmp_path: Path) -> None:
    assert (await engine.run("lengths", {"words": ["a", "bcd"]}, timeout_s=30)).items == [1, 3]
    word = tmp_path / "word.txt"
    word.write_text("öffnen", "utf-8")
    assert (await engine.run("lengths", {"words": word}, timeout_s=30)).items == [6]
    assert (await engine.run("lengths", {"words": ["a", word]}, timeout_s=30)).items == [1, 6]
    word.write_bytes(b"a\xff")
    with pytest.raises(CartdeckError) as caught:
        await engine.run("lengths", {"words": ["a", word]}, timeout_s=30)
    assert (caught.value.code, caught.value.argument) == (Code.INVALID_TEXT, "words")


async def test_a_second_output_has_its_name(engine: Engine) -> None:
    result = await engine.run("initials", {"text": "well done"}, timeout_s=30)
    assert (result.text, result.output("counts")) == ("wd", b'{"words": 2}')


async def test_progress_is_told_with_its_phases(engine: Engine) -> None:
    phases: set[str | None] = set()
    async with asyncio.timeout(60):
        while not {"oven", "baking"} <= phases:  # who is late to take the one hears of the other alone
            async with engine.call("bake", {}, timeout_s=30) as call:
                phases |= {event.phase async for event in call if isinstance(event, Progress)}
            assert call.result.text == "bread"


async def test_blocking_work_runs_beside_the_loop(engine: Engine) -> None:
    assert len((await engine.run("digest", {"data": b"x"}, timeout_s=30)).text) == 64


async def test_a_peer_is_asked(engine: Engine) -> None:
    assert (await engine.run("ask-around", {"text": "hello"}, timeout_s=30)).text == "hello"


async def test_an_error_has_its_code_and_its_argument(engine: Engine) -> None:
    assert (await engine.run("halve", {"number": 4}, timeout_s=30)).text == "2"
    with pytest.raises(CartdeckError, match="found 3, expected an even number") as caught:
        await engine.run("halve", {"number": 3}, timeout_s=30)
    assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "number")


async def test_requests_share_the_state_that_the_start_made(engine: Engine) -> None:
    first = int((await engine.run("count", {}, timeout_s=30)).text)
    assert int((await engine.run("count", {}, timeout_s=30)).text) == first + 1


async def test_no_more_requests_are_there_than_the_capacity_says_and_a_cancel_makes_room(engine: Engine) -> None:
    async with asyncio.timeout(30):
        async with engine.call("wait", {}) as one, engine.call("wait", {}) as two:
            seen = [await first_data(call) for call in (one, two)]
        assert seen == [b"1", b"2"]
        assert (await engine.run("wait", {"seconds": 0}, timeout_s=30)).text in ("1", "2")


async def first_data(call: AsyncIterator[Any]) -> bytes:
    async for event in call:
        if isinstance(event, Data):
            return event.value
    raise AssertionError("it gave nothing")


def test_the_page_keeps_to_the_wire(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(page / "packages"), known])))
    report = check_cartridge([sys.executable, "-P", "-m", "cartdeck_sdk", "page"], fast=True, only=range(3, 18))
    assert report.passed, str(report)
    one = Options(samples={"lengths": {"words": "one"}})
    report = check_cartridge([sys.executable, "-P", "-m", "cartdeck_sdk", "page"], fast=True, only={6}, options=one)
    assert report.passed, str(report)
