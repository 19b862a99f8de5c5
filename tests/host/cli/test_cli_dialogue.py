"""What is said in `cartdeck chat`, line by line, before any model hears it; options become arguments."""

import base64
from pathlib import Path

import pytest

from cartdeck.cli.conversing import OPTIONS
from cartdeck.cli.describe import describe
from cartdeck.cli.dialogue import HELP, Dialogue, spoken
from cartdeck.cli.embed import beginning_of, numbers_of
from cartdeck.cli.image_file import check_image_file
from cartdeck.cli.info import rows_of
from cartdeck.cli.text_options import given
from cartdeck_protocol.errors import CartdeckError, Code

NO_CHOICE = {"catalog": None, "profile": None}


def test_what_is_said_and_heard_becomes_messages() -> None:
    dialogue = Dialogue(system="Be brief.")
    dialogue.say("Hi")
    dialogue.hear("Hello.")
    dialogue.say("Bye")
    assert dialogue.messages() == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Bye"},
        ]
    }


def test_a_message_without_any_answer_is_taken_back() -> None:
    dialogue = Dialogue()
    dialogue.say("Hi")
    dialogue.hear("")
    assert dialogue.messages() == {"messages": []}


def test_an_image_goes_with_the_next_message_alone(tmp_path: Path) -> None:
    path = tmp_path / "my picture.png"
    path.write_bytes(b"\x89PNG pixels")
    dialogue = Dialogue()
    assert dialogue.obey(f"/image {path}") == f"The next message shows {path}."
    dialogue.say("What is it?")
    dialogue.say("And now?")
    first, second = dialogue.messages()["messages"]
    address = first["content"][0]["image_url"]["url"]
    assert base64.b64decode(address.partition(",")[2]) == b"\x89PNG pixels"
    assert first["content"][1] == {"type": "text", "text": "What is it?"}
    assert second["content"] == "And now?"


def test_commands_are_obeyed_and_anything_else_is_said() -> None:
    dialogue = Dialogue()
    dialogue.obey("/system Be kind.")
    assert dialogue.messages()["messages"][0]["content"] == "Be kind."
    dialogue.obey("/system")
    dialogue.say("Hi")
    dialogue.obey("/reset")
    assert dialogue.messages() == {"messages": []}
    assert dialogue.obey("/help") == HELP
    assert dialogue.obey("What about /help?") is None
    assert dialogue.obey("//etc is a folder") is None
    assert spoken("//etc is a folder") == "/etc is a folder"
    assert not dialogue.is_over
    dialogue.obey("/quit")
    assert dialogue.is_over


@pytest.mark.parametrize(
    ("line", "code"),
    [("/image", Code.BAD_ARGUMENT), ("/sing", Code.BAD_ARGUMENT), ("/image /no/such.png", Code.FILE_NOT_FOUND),
     ("/image /", Code.BAD_ARGUMENT)],
)  # fmt: skip
def test_a_command_that_cannot_be_obeyed_says_why(line: str, code: Code) -> None:
    with pytest.raises(CartdeckError) as caught:
        Dialogue().obey(line)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", Code.EMPTY_INPUT), (b'{"a": 1}\n', Code.BAD_IMAGE), ("grün".encode() * 200, Code.BAD_IMAGE)],
)
def test_what_is_seen_to_be_no_image_is_refused_before_a_model_is_loaded(
    data: bytes, code: Code, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    for ask in (lambda: Dialogue().obey(f"/image {path}"), lambda: describe([path], model="./model.gguf", **NO_CHOICE)):
        with pytest.raises(CartdeckError, match=r"a\.json: .*expected an image") as caught:
            ask()
        assert caught.value.code is code


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a\x01\0", b"BM\x46\0\0\0", b"P3\n1 1\n255\n0 0 0\n"]
)
def test_what_may_be_an_image_is_left_to_the_cartridge(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(data)
    check_image_file(path)


def test_an_image_without_a_model_that_sees_is_refused_with_one_that_does(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(b"\x89PNG")
    with pytest.raises(CartdeckError, match=r"needs model, which was not given.* hf:") as caught:
        describe([path], model=None, **NO_CHOICE)
    assert (caught.value.code, caught.value.argument) == (Code.MISSING_ARGUMENT, "model")


def test_a_dialogue_at_a_terminal_names_options() -> None:
    assert {"--model", "--projector", "--max-tokens", "--gpu-layers"} <= {*OPTIONS}


def test_options_that_were_given_become_arguments(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    lora = ["a.gguf", '{"model": "b.gguf", "scale": 0.5}']
    assert given(max_tokens="8", seed=None, stop=[], json_schema=schema, lora=lora) == {
        "max-tokens": "8",
        "json-schema": '{"type": "object"}',
        "lora": ["a.gguf", {"model": "b.gguf", "scale": 0.5}],
    }


def test_a_file_that_an_option_names_and_is_not_there_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, code in (
        (tmp_path / "none", Code.FILE_NOT_FOUND),
        (binary, Code.INVALID_TEXT),
        (tmp_path, Code.BAD_ARGUMENT),
    ):
        with pytest.raises(CartdeckError) as caught:
            given(grammar=path)
        assert (caught.value.code, caught.value.argument) == (code, "--grammar")
    with pytest.raises(CartdeckError):
        given(lora=["{"])


def test_a_vector_is_shown_with_the_digits_that_it_has() -> None:
    assert numbers_of(b"\0\0\x80?\xcd\xcc\xcc=") == [1.0, 0.100000001]
    assert beginning_of([0.5] * 10) == "[0.5000, 0.5000, 0.5000, 0.5000, … 10 numbers]"


def test_a_record_becomes_lines_a_person_reads() -> None:
    record = {
        "architecture": "llama",
        "name": None,
        "parameters": 1_000_000,
        "memory": {"cache_bytes": 2_000_000},
        "files": [{"path": "/a", "size_bytes": 5_000_000}],
        "template": "a\n" * 100,
    }
    rows = dict(rows_of(record))
    assert rows["parameters"] == "1,000,000"
    assert rows["memory.cache_bytes"] == "2.0 MB"
    assert rows["files"] == "path /a, size_bytes 5.0 MB"
    assert len(rows["template"]) == 100
    assert "name" not in rows
