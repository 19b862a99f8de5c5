"""How arguments are spelt on the command line."""

import io
import sys
from pathlib import Path

import anyio
import pytest

from cartdeck.cli.arguments import parse_arguments, read_items, read_text
from cartdeck_protocol.caps import load_shared_definition
from cartdeck_protocol.errors import CartdeckError, Code


def test_a_value_may_hold_equals_signs_and_nothing_is_trimmed_from_it() -> None:
    assert parse_arguments(["prompt= a=b ", "seed=7", "stop="]) == {"prompt": " a=b ", "seed": "7", "stop": ""}


def test_a_name_given_again_makes_a_sequence() -> None:
    assert parse_arguments(["text=one", "text=two"]) == {"text": ["one", "two"]}


def test_a_sequence_is_read_by_the_type_of_its_items_and_all_else_is_left(tmp_path: Path) -> None:
    definition = load_shared_definition("embed-text")
    given = {"texts": '["a", "b"]', "model": "[m]", "normalize": "true"}
    assert read_items(definition, given) == {**given, "texts": ["a", "b"]}
    assert read_items(definition, {"media:enc=utf-8;text": "one"}) == {"media:enc=utf-8;text": ["one"]}
    several = {"texts": ['["a"]', tmp_path], "nonsense": "[]"}
    assert read_items(definition, several) == several


def test_an_at_sign_names_a_file_and_two_stand_for_one(tmp_path: Path) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(b"x")
    assert parse_arguments([f"image=@{file}", "text=@@home"]) == {"image": file, "text": "@home"}


@pytest.mark.parametrize(
    ("pair", "code"),
    [("prompt", Code.BAD_ARGUMENT), ("=x", Code.BAD_ARGUMENT), ("image=@/no/such/file", Code.FILE_NOT_FOUND)],
)
def test_a_pair_that_makes_no_sense_is_refused_before_any_work(pair: str, code: Code) -> None:
    with pytest.raises(CartdeckError) as caught:
        parse_arguments([pair])
    assert caught.value.code is code


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CartdeckError, match="is a folder"):
        parse_arguments([f"image=@{tmp_path}"])


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grüß\n\n".encode())))
    assert read_text("-", name="prompt") == "grüß\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bytes")))
    parsed = parse_arguments(["data=@-"])

    async def read() -> bytes:
        return b"".join([part async for part in parsed["data"]])

    assert anyio.run(read) == b"bytes"


def test_standard_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    with pytest.raises(CartdeckError, match="byte 2 is 0xff") as caught:
        read_text("-", name="prompt")
    assert caught.value.code is Code.INVALID_TEXT
