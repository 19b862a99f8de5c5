"""Arguments: checked before anything starts, small ones inline, others as streams; and the canonical instance."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck.calls.arguments import INLINE_BYTES, Prepared, prepare, prepare_instance, prepare_peer
from cartdeck.calls.instance import instance_forms
from cartdeck_protocol.caps import CapDefinition, parse_definition
from cartdeck_protocol.errors import CartdeckError, Code

GENERATE = parse_definition(
    """
urn = 'cap:generate;in="media:enc=utf-8;prompt";out="media:enc=utf-8;text"'
title = "G"
documentation = "D"
[arguments.prompt]
is_main = true
required = true
documentation = "D"
[arguments.model]
media = "media:enc=utf-8;model-spec"
is_instance = true
default = "small"
documentation = "D"
[arguments.context-size]
media = "media:context-size;integer;numeric"
is_instance = true
default = 0
documentation = "D"
[arguments.stop]
media = "media:enc=utf-8;fmt=json;list;stop-texts"
documentation = "D"
[output]
documentation = "D"
""",
    "generate",
)
EMBED = parse_definition(
    """
urn = 'cap:embed;in="media:enc=utf-8;text";out="media:embedding;f32"'
title = "E"
documentation = "D"
[arguments.text]
is_main = true
is_sequence = true
required = true
documentation = "D"
[arguments.model]
media = "media:enc=utf-8;model-spec"
is_instance = true
default = "smaller"
documentation = "D"
[output]
is_sequence = true
documentation = "D"
""",
    "embed",
)
TOKENIZE = parse_definition(
    """
urn = 'cap:tokenize;in="media:enc=utf-8;text";out="media:fmt=json;token-ids"'
title = "T"
documentation = "D"
[arguments.text]
is_main = true
required = true
documentation = "D"
[arguments.model]
media = "media:enc=utf-8;model-spec"
is_instance = true
default = "small"
documentation = "D"
[output]
documentation = "D"
""",
    "tokenize",
)
FORMS = instance_forms([GENERATE, TOKENIZE])
MIXED_FORMS = instance_forms([GENERATE, EMBED])


def ready(definition: CapDefinition = GENERATE, **arguments: Any) -> Prepared:
    forms = FORMS if definition.alias in FORMS else MIXED_FORMS
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return prepare(definition, forms[definition.alias], named)


def refused(definition: CapDefinition = GENERATE, **arguments: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        ready(definition, **arguments)
    return caught.value


def test_small_values_go_inline() -> None:
    prepared = ready(prompt="hé", context_size=2048, stop=["\n"])
    assert prepared.inline == {"prompt": "hé".encode(), "context-size": b"2048", "stop": b'["\\n"]'}
    assert prepared.is_complete


def test_large_values_become_streams_and_instance_arguments_stay_inline() -> None:
    prepared = ready(prompt="x" * (INLINE_BYTES - 2), model="m" * 100)
    assert list(prepared.inline) == ["model"]
    assert [(one.definition.name, len(one.source)) for one in prepared.streams] == [("prompt", INLINE_BYTES - 2)]
    assert not prepared.is_complete


def test_instance_arguments_that_do_not_fit_are_refused() -> None:
    error = refused(prompt="x", model="m" * (INLINE_BYTES + 1))
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "model")


def test_unknown_missing_and_doubled_arguments_are_named() -> None:
    assert refused(promt="x").code is Code.UNKNOWN_ARGUMENT
    assert "did you mean 'prompt'?" in str(refused(promt="x"))
    assert (refused().code, refused().argument) == (Code.MISSING_ARGUMENT, "prompt")
    with pytest.raises(CartdeckError, match="given twice"):
        prepare(GENERATE, FORMS["generate"], {"prompt": "a", "media:enc=utf-8;prompt": "b"})


def test_a_media_urn_names_an_argument_too() -> None:
    assert prepare(GENERATE, FORMS["generate"], {"media:enc=utf-8;prompt": "a"}).inline == {"prompt": b"a"}


def test_none_means_absent() -> None:
    assert ready(prompt="x", stop=None, context_size=None).inline == {"prompt": b"x"}
    assert refused(prompt=None).code is Code.MISSING_ARGUMENT


@pytest.mark.parametrize("value", ["many", 1.5, True, 2**70, [1]])
def test_a_value_of_the_wrong_type_says_what_was_wanted(value: object) -> None:
    error = refused(prompt="x", context_size=value)
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "context-size")
    assert "integer" in str(error)


def test_a_file_is_read_as_a_stream_and_a_model_path_is_its_text(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("once upon a time", "utf-8")
    prepared = ready(prompt=path, model=path)
    assert prepared.inline == {"model": str(path).encode()}
    assert prepared.streams[0].source == path


def test_a_file_that_cannot_be_read_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert refused(prompt=tmp_path / "absent").code is Code.FILE_NOT_FOUND
    assert refused(prompt=tmp_path).code is Code.BAD_ARGUMENT
    assert refused(prompt="x", context_size=tmp_path).code is Code.BAD_ARGUMENT


class Unspeakable:
    def __repr__(self) -> str:
        raise OSError


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    [Unspeakable(), [Unspeakable()], [10**5000], 10**5000, deep(5000)],
    ids=["object", "object in a list", "number in a list", "number", "lists in lists"],
)
def test_a_value_that_cannot_even_be_shown_is_refused(value: object) -> None:
    for name in ("prompt", "context_size", "stop"):
        error = refused(**{"prompt": "x", name: value})
        assert (error.code, error.argument) == (Code.BAD_ARGUMENT, name.replace("_", "-"))
    assert refused(EMBED, text=[value]).code is Code.BAD_ARGUMENT


@pytest.mark.parametrize("path", [Path("a\0b"), Path("~no-such-user/x"), Path("a" * 5000)])
def test_a_path_that_can_name_no_file_is_refused(path: Path) -> None:
    assert refused(prompt=path).code in (Code.BAD_ARGUMENT, Code.FILE_NOT_FOUND)
    if str(path).startswith("~"):
        assert refused(prompt="x", model=path).code is Code.BAD_ARGUMENT


def test_iterables_become_streams() -> None:
    async def parts() -> AsyncIterator[str]:
        yield "once"

    source = parts()
    assert ready(prompt=source).streams[0].source is source
    assert ready(prompt=iter(["a", "b"])).streams[0].definition.name == "prompt"
    assert refused(prompt="x", model=iter("ab")).argument == "model"
    assert refused(prompt=["a", "b"]).code is Code.BAD_ARGUMENT


def test_a_sequence_takes_a_list_or_one_item() -> None:
    assert ready(EMBED, text=["a", "b"]).streams[0].items == [b"\xa1a", b"\xa1b"]
    assert ready(EMBED, text="a").streams[0].items == [b"\xa1a"]
    assert ready(EMBED, text=["a"] * 100).streams[0].items is None


def test_the_items_of_a_short_list_are_checked_before_anything_is_sent() -> None:
    error = refused(EMBED, text=["a", 2])
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "text")
    assert "the number 2" in str(error)


def test_what_is_no_regular_file_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = refused(prompt=tmp_path / "pipe")
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "prompt")
    assert "no regular file" in str(error)


def test_defaults_on_which_the_caps_agree_are_left_out_of_the_instance() -> None:
    assert ready(prompt="x").instance == ""
    assert ready(prompt="x", model="small", context_size=0).instance == ""
    assert ready(prompt="x", context_size="2048").instance == '{"context-size":2048}'
    assert ready(prompt="x", model="b", context_size=1).instance == '{"context-size":1,"model":"b"}'


def test_a_cap_without_an_argument_shares_the_instance_of_its_default() -> None:
    assert ready(TOKENIZE, text="x", model="b").instance == ready(prompt="x", model="b").instance


def test_defaults_on_which_the_caps_differ_are_always_in_the_instance() -> None:
    one = prepare(GENERATE, MIXED_FORMS["generate"], {"prompt": "x"})
    other = prepare(EMBED, MIXED_FORMS["embed"], {"text": "x"})
    assert one.instance == '{"model":"small"}'
    assert other.instance == '{"model":"smaller"}'


def test_a_peer_call_must_say_its_instance_in_the_request() -> None:
    prepared = prepare_peer(GENERATE, FORMS["generate"], {"media:enc=utf-8;model-spec": b"b"}, is_complete=False)
    assert prepared.inline == {"model": b"b"}
    assert prepared.instance == '{"model":"b"}'
    assert not prepared.is_complete
    with pytest.raises(CartdeckError) as caught:
        prepare_peer(GENERATE, FORMS["generate"], {"modle": b"b"}, is_complete=True)
    assert caught.value.code is Code.UNKNOWN_ARGUMENT
    with pytest.raises(CartdeckError) as caught:
        prepare_peer(GENERATE, FORMS["generate"], {"model": b"\xff"}, is_complete=True)
    assert caught.value.code is Code.INVALID_TEXT


def test_loading_looks_at_instance_arguments_alone() -> None:
    prepared = prepare_instance(GENERATE, FORMS["generate"], {"model": "b", "prompt": "x", "stop": None})
    assert prepared.inline == {"model": b"b"}
