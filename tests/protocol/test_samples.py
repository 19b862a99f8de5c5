"""Samples in a manifest: what they may hold, how they are read, and what is refused."""

import json
from typing import Any

import pytest

from cartdeck_protocol import CartdeckError, Code
from cartdeck_protocol.caps import Manifest, build_manifest, parse_definition, sample_bytes, sample_items

DEFINITION = """
urn = 'cap:in="media:image";out="media:enc=utf-8;text";look'
title = "Look"
documentation = "Looks."

[arguments.image]
is_main = true
required = true
documentation = "An image."

[arguments.description]
media = "media:enc=utf-8;hint"
documentation = "A hint."

[arguments.words]
media = "media:enc=utf-8;word"
is_sequence = true
documentation = "Words."

[arguments.count]
media = "media:count;integer;numeric"
default = 1
maximum = 3
documentation = "How often."

[output]
documentation = "What is seen."
"""
CARTRIDGE = """
name = "looker"
version = "1.0.0"
title = "Looker"
description = "Looks."
caps = ["look"]
"""


def manifest_with(sample: str) -> Manifest:
    return build_manifest(
        f"{CARTRIDGE}\n[samples.look]\n{sample}", lambda alias: DEFINITION if alias == "look" else None
    )


def argument(name: str) -> Any:
    return parse_definition(DEFINITION, "look").arguments[name]


def test_a_sample_survives_the_way_through_the_file() -> None:
    made = manifest_with('image = "data:image/png;base64,AAEC"\nwords = ["a", "b"]\ncount = 2')
    assert Manifest.from_json(made.to_json()) == made
    assert made.samples["look"]["words"] == ["a", "b"]


def test_a_manifest_without_samples_says_nothing_of_them() -> None:
    made = build_manifest(CARTRIDGE, lambda alias: DEFINITION if alias == "look" else None)
    assert "samples" not in json.loads(made.to_json())


def test_the_lines_of_a_sample_are_not_taken_for_prose() -> None:
    made = manifest_with('image = "x"\ndescription = "one\\n  two"')
    assert made.samples["look"]["description"] == "one\n  two"


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("image", "plain", b"plain"),
        ("image", "data:image/png;base64,AAEC", b"\0\1\2"),
        ("image", "data: is no URL here", b"data: is no URL here"),
        ("count", 2, b"2"),
        ("description", "data:;base64,AAEC", b"data:;base64,AAEC"),
    ],
)
def test_a_plain_value_stands_for_bytes(name: str, value: Any, data: bytes) -> None:
    assert sample_bytes(argument(name), value) == data


def test_a_sequence_is_a_list_of_its_items() -> None:
    assert sample_items(argument("words"), ["a", "b"]) == ["a", "b"]
    with pytest.raises(CartdeckError) as caught:
        sample_items(argument("words"), "a")
    assert caught.value.code is Code.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("count = 1", "needs image"),
        ('image = "x"\ncount = 4', "count"),
        ('image = "x"\ncolour = 1', "no argument 'colour'"),
        ('image = "data:;base64,A"', "no base64"),
        ('image = "x"\nwords = "a"', "expected a list"),
    ],
)
def test_a_sample_that_no_call_could_be_made_with_is_refused(sample: str, words: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        manifest_with(sample)
    assert caught.value.code is Code.MANIFEST_DRIFT
    assert words in str(caught.value)


def test_a_sample_of_a_cap_that_is_not_served_is_refused() -> None:
    with pytest.raises(CartdeckError, match="there is no cap 'lok'"):
        build_manifest(f"{CARTRIDGE}\n[samples.lok]\nx = 1", lambda alias: DEFINITION if alias == "look" else None)


def test_a_file_beside_the_manifest_becomes_the_bytes_of_its_argument_alone() -> None:
    files = {"sign.png": b"\x89PNG", "plain": b"text"}

    def made(sample: str) -> Any:
        toml = f"{CARTRIDGE}\n[samples.look]\n{sample}"
        return build_manifest(toml, lambda alias: DEFINITION if alias == "look" else None, files.__getitem__)

    found = made('image = "@sign.png"\ndescription = "@sign.png"').samples["look"]
    assert sample_bytes(argument("image"), found["image"]) == b"\x89PNG"
    assert found["description"] == "@sign.png"
    assert made('image = "@plain"').samples["look"]["image"] == "text"
    assert made('image = "@@plain"').samples["look"]["image"] == "@plain"
