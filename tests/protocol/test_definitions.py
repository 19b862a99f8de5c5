"""Cap definitions: the shared ones, a third party's, and what an author is told when one is wrong."""

import re
from pathlib import Path

import pytest

from cartdeck_protocol import CartdeckError, Code
from cartdeck_protocol.caps import (
    CapDefinition,
    CapUrn,
    ValueKind,
    decode_value,
    encode_value,
    load_shared_definition,
    parse_definition,
    shared_aliases,
)

SHOUT = """
urn = 'cap:in="media:enc=utf-8;text";out="media:enc=utf-8;text";shout'
title = "Shout"
documentation = \"\"\"
Says it
louder.

Twice.\"\"\"

[arguments.text]
is_main = true
required = true
documentation = "What to say."

[arguments.volume]
media = "media:integer;numeric;volume"
default = 3
minimum = 1
maximum = 11
documentation = "How loud."

[output]
documentation = "The text, louder."

[outputs.echoes]
media = "media:enc=utf-8;echo"
is_sequence = true
documentation = "What came back."
"""
AGAIN = '[arguments.again]\nmedia = "media:integer;numeric;volume"\ndocumentation = "x"\n'


def refusal(text: str) -> str:
    with pytest.raises(CartdeckError) as caught:
        parse_definition(text, "shout")
    assert caught.value.code is Code.MANIFEST_DRIFT
    return str(caught.value)


@pytest.mark.parametrize("alias", shared_aliases())
def test_each_shared_definition_is_whole(alias: str) -> None:
    definition = load_shared_definition(alias)
    assert definition.alias == alias
    assert definition.title
    for described in (definition, *definition.arguments.values(), *definition.outputs.values()):
        assert described.documentation.rstrip().endswith((".", ")")), described
        assert "\n" not in described.documentation.replace("\n\n", "")
    for argument in definition.arguments.values():
        if argument.has_default:
            assert decode_value(argument, encode_value(argument, argument.default)) == argument.default
        assert definition.argument(str(argument.media)) is argument


@pytest.mark.parametrize(
    ("request_text", "alias"),
    [
        ('cap:in="media:model-spec;enc=utf-8";out="media:file-path;enc=utf-8";download-model', "download-model"),
        ("cap:download-model", "download-model"),
        ("cap:generate-text", "generate-text"),
        ("cap:model-info", "model-info"),
        ("cap:reserve-memory", "reserve-memory"),
        ("cap:effect=none", "identity"),
        ("cap:discard;in=media:;out=media:void", "discard"),
    ],
)
def test_a_request_is_served_by_the_definition_meant_and_by_no_other(request_text: str, alias: str) -> None:
    request = CapUrn.parse(request_text)
    assert [name for name in shared_aliases() if load_shared_definition(name).urn.serves(request)] == [alias]


def test_a_cap_is_asked_for_by_its_engine_once_it_has_the_tag() -> None:
    definition = load_shared_definition("generate-text")
    request = CapUrn.parse("cap:generate-text;gguf")
    assert not definition.urn.serves(request)
    assert definition.with_tags("gguf").urn.serves(request)
    assert not definition.with_tags("torch").urn.serves(request)


def test_the_instance_of_a_language_model_is_made_by_what_its_load_depends_on() -> None:
    names = [argument.name for argument in load_shared_definition("generate-text").instance_arguments]
    assert names == [
        "model",
        "context-size",
        "threads",
        "gpu-layers",
        "device",
        "dtype",
        "kv-cache",
        "tensor-parallel",
        "lora",
    ]


def test_stop_takes_a_list_of_texts_or_one_text() -> None:
    stop = load_shared_definition("generate-text").argument("stop")
    assert stop.kind is ValueKind.JSON
    assert decode_value(stop, encode_value(stop, ["\n", "User:"])) == ["\n", "User:"]
    assert decode_value(stop, encode_value(stop, "\n")) == ["\n"]


def test_a_third_party_definition_is_read_in_its_order() -> None:
    definition = parse_definition(SHOUT, "shout")
    assert list(definition.arguments) == ["text", "volume"]
    assert definition.documentation == "Says it louder.\n\nTwice."
    main = definition.main_argument
    assert main is not None
    assert (main.name, main.cli, main.media) == ("text", "position", definition.urn.input)
    assert definition.argument("volume").cli == "--volume"
    assert definition.main_output is not None
    assert definition.main_output.media == definition.urn.output
    assert definition.outputs["echoes"].is_sequence


def test_an_unknown_argument_lists_the_known_ones_with_the_nearest_first() -> None:
    definition = parse_definition(SHOUT, "shout")
    with pytest.raises(CartdeckError, match=r"did you mean 'volume'.* volume, text") as caught:
        definition.argument("volum")
    assert caught.value.code is Code.UNKNOWN_ARGUMENT
    assert caught.value.argument == "volum"
    for name in ("media:other", "media:a b", ""):
        with pytest.raises(CartdeckError, match="text, volume"):
            definition.argument(name)


def test_an_argument_answers_to_its_media_urn_however_it_is_written() -> None:
    definition = parse_definition(SHOUT, "shout")
    assert definition.argument("media:volume;numeric;integer").name == "volume"
    assert definition.argument("MEDIA:text;enc=utf-8").name == "text"


def test_a_missing_argument_is_named() -> None:
    definition = parse_definition(SHOUT, "shout")
    definition.check_complete({"text"})
    with pytest.raises(CartdeckError, match="shout needs text") as caught:
        definition.check_complete({"volume"})
    assert (caught.value.code, caught.value.argument) == (Code.MISSING_ARGUMENT, "text")


def test_an_unknown_shared_definition_lists_the_known_ones() -> None:
    with pytest.raises(CartdeckError, match="generate-text") as caught:
        load_shared_definition("../generate-text")
    assert caught.value.code is Code.NO_SUCH_CAP


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("default = 3", "defualt = 3", r"shout.toml: arguments\[volume\]: unknown key 'defualt'"),
        ('title = "Shout"', 'title = "Shout"\ncolour = 1', "unknown key 'colour'; the keys are"),
        ('title = "Shout"', "", "the key 'title' is missing"),
        ('title = "Shout"', "title = 3", "title: found an integer, expected a text"),
        ('title = "Shout"', 'title = "Shout"\nalias = "x"', "the file's name is the alias"),
        ("default = 3", "default = 12", "found the number 12, expected an integer from 1 to 11"),
        ("default = 3", 'default = "loud"', "found the text 'loud'"),
        ("default = 3", "default = 3\nrequired = true", "required has no default"),
        ("default = 3", "default = 3\nis_stream = true", "stream or sequence has no default"),
        ("default = 3", "is_stream = true\nis_instance = true", "read before routing"),
        ("default = 3", "choices = [3, 20]", "found the number 20"),
        ("minimum = 1", "minimum = 20", "minimum is above maximum"),
        ("minimum = 1", "minimum = nan", "finite number"),
        ("minimum = 1", 'minimum = "1"', "found a text, expected a finite number"),
        ("media:integer;numeric;volume", "media:volume", "minimum and maximum are for numbers"),
        ("media:integer;numeric;volume", "media:integer;numeric;volume=", "media: found no value"),
        ("[output]", AGAIN + "[output]", "argument's media URN .* is there twice"),
        ("[output]", AGAIN.replace("ic;v", "ic;w") + "cli = '--volume'\n[output]", "option '--volume' is there twice"),
        ("[arguments.volume]", "[arguments.Volume]", "found the name 'Volume'"),
        ("is_main = true", 'is_main = true\nmedia = "media:image"', "expected media:enc=utf-8;text as in the cap"),
        ("is_main = true", 'media = "media:enc=utf-8;word"', "has 1 main argument"),
        ("default = 3", 'default = 3\ncli = "-v"', "an option such as '--volume'"),
        ("default = 3", 'default = 3\ncli = "position"\n[arguments.x]', "missing"),
        ("[output]", "[outputs.other]", "has a main output|missing"),
        ("urn = 'cap:", "urn = 'cup:", "urn: a cap URN starts with"),
        ("urn = ", "urn ", "this is no TOML"),
        ("[arguments.volume]", "[arguments.volume.deeper]", "missing"),
        ('"What came back."', '"What came back."\nname = "x"', "without the key 'name'"),
    ],
)
def test_a_faulty_definition_is_refused_with_the_place_and_the_reason(old: str, new: str, words: str) -> None:
    changed = SHOUT.replace(old, new)
    assert changed != SHOUT
    message = refusal(changed)
    assert message.startswith("shout.toml")
    assert re.search(words, message), message


def test_a_cap_without_input_or_output_needs_neither() -> None:
    text = 'urn = "cap:in=media:void;out=media:void;ping"\ntitle = "Ping"\ndocumentation = "Pings."\n'
    definition: CapDefinition = parse_definition(text, "ping")
    assert (definition.main_argument, definition.main_output) == (None, None)
    assert "has no main output" in refusal(text + '[output]\ndocumentation = "x"\n')
    assert "has 0 main argument" in refusal(text + '[arguments.x]\nis_main = true\ndocumentation = "x"\n')
    with pytest.raises(CartdeckError, match="it takes no arguments"):
        definition.argument("x")


def test_the_example_in_the_readme_is_a_definition() -> None:
    readme = Path(__file__).parents[2] / "protocol" / "cartdeck_protocol" / "caps" / "README.md"
    example = readme.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    definition = parse_definition(example, "shout")
    assert list(definition.arguments) == ["text", "volume"]


def test_a_default_has_the_type_that_a_handler_gets() -> None:
    text = SHOUT.replace("media:integer;numeric;volume", "media:numeric;volume")
    default = parse_definition(text, "shout").argument("volume").default
    assert (type(default), default) == (float, 3.0)
