"""Manifests: built from TOML, read back strictly, canonical bytes, and what reading one loads."""

import json
import subprocess
import sys
from typing import Any

import pytest

from cartdeck_protocol import CartdeckError, Code
from cartdeck_protocol.caps import (
    UNIVERSAL_CAPS,
    CapUrn,
    Manifest,
    Requirement,
    build_manifest,
    load_shared_definition,
    parse_definition,
    shared_aliases,
)

GGUF = """
name = "gguf"
version = "0.1.0"
title = "GGUF models"
description = "Runs\\nmodels."
caps = ["generate-text", "model-info"]
tags = ["gguf"]
accepts = ["*.gguf*"]
holds_instances = true
capacity = 2

[[requires]]
module = "llama_cpp"
install = "pip install 'cartdeck[gguf]'"
"""
OWN = """
urn = 'cap:in="media:enc=utf-8;text";out="media:enc=utf-8;text";shout'
title = "Shout"
documentation = "Louder."

[arguments.text]
is_main = true
required = true
documentation = "What to say."

[output]
documentation = "The text."
"""


def refusal(data: bytes | str) -> str:
    with pytest.raises(CartdeckError) as caught:
        Manifest.from_json(data)
    assert caught.value.code is Code.MANIFEST_DRIFT
    return str(caught.value)


def changed(**fields: Any) -> bytes:
    plain = json.loads(build_manifest(GGUF).to_json())
    return json.dumps({**plain, **fields}).encode()


def test_a_manifest_comes_back_as_it_went() -> None:
    manifest = build_manifest(GGUF)
    data = manifest.to_json()
    assert Manifest.from_json(data) == manifest
    assert Manifest.from_json(data.decode()).to_json() == data
    assert data.endswith(b"}\n")
    assert list(json.loads(data)) == sorted(json.loads(data))


@pytest.mark.parametrize("alias", shared_aliases())
def test_each_shared_definition_survives_a_manifest(alias: str) -> None:
    text = f'name="x"\nversion="1"\ntitle="X"\ndescription="X"\nholds_instances=true\ncaps=["{alias}"]\n'
    definition = Manifest.from_json(build_manifest(text).to_json()).cap(alias)
    assert definition == load_shared_definition(alias)
    assert list(definition.arguments) == list(load_shared_definition(alias).arguments)


def test_a_manifest_holds_what_its_source_says() -> None:
    manifest = build_manifest(GGUF)
    assert (manifest.name, manifest.capacity, manifest.holds_instances) == ("gguf", 2, True)
    assert manifest.requires == (Requirement(module="llama_cpp", install="pip install 'cartdeck[gguf]'"),)
    assert manifest.accepts == ("*.gguf*",)
    assert manifest.cap("generate-text").argument("max-tokens").default == 512


def test_the_cartridge_tags_are_on_its_own_caps_and_the_universal_caps_are_added_bare() -> None:
    manifest = build_manifest(GGUF)
    assert [definition.alias for definition in manifest.caps] == ["generate-text", "model-info", *UNIVERSAL_CAPS]
    assert manifest.cap("generate-text").urn.serves(CapUrn.parse("cap:generate-text;gguf"))
    assert str(manifest.cap("identity").urn) == "cap:effect=none"
    assert str(manifest.cap("discard").urn) == "cap:discard;out=media:void"


def test_a_cartridge_definition_wins_over_a_shared_one() -> None:
    own = {"generate-text": OWN.replace("shout", "generate-text"), "shout": OWN}
    text = GGUF.replace('"model-info"', '"shout"')
    manifest = build_manifest(text, own.get)
    assert list(manifest.cap("generate-text").arguments) == ["text"]
    assert manifest.cap("shout") == parse_definition(OWN, "shout").with_tags("gguf")


def test_a_cap_defined_nowhere_is_named() -> None:
    with pytest.raises(CartdeckError, match="'sing'") as caught:
        build_manifest(GGUF.replace("model-info", "sing"))
    assert caught.value.code is Code.NO_SUCH_CAP


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "gguf"', 'name = "gguf"\ncolour = "red"', "manifest.toml: unknown key 'colour'"),
        ('name = "gguf"', 'name = "G G"', "name: found 'G G'"),
        ('tags = ["gguf"]', 'tags = ["a b"]', "tags: found ' '"),
        ('tags = ["gguf"]', 'tags = "gguf"', "tags: found a text, expected a list"),
        ("capacity = 2", "capacity = 0", "capacity: found 0"),
        ("capacity = 2", "capacity = true", "capacity: found true or false"),
        ("holds_instances = true", "holds_instances = false", "generate-text has instance arguments"),
        ('"model-info"]', '"model-info", "model-info"]', "'model-info' is there twice"),
        ('module = "llama_cpp"', 'module = "llama-cpp"', "that Python can import"),
        ('version = "0.1.0"', "", "the key 'version' is missing"),
    ],
)
def test_a_faulty_manifest_source_is_refused(old: str, new: str, words: str) -> None:
    text = GGUF.replace(old, new)
    assert text != GGUF
    with pytest.raises(CartdeckError) as caught:
        build_manifest(text)
    assert caught.value.code is Code.MANIFEST_DRIFT
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "this is no manifest"),
        (b"\xff", "this is no manifest"),
        (b"[1]", "found a list, expected a record"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (b'{"a": NaN}', "found NaN"),
        (b"[" * 100_000, "this is no manifest"),
        (b"{}", "found format 0, expected 1"),
        (changed(format=2), "written for another version"),
        (changed(format=True), "format: found true or false"),
        (changed(colour="red"), "unknown key 'colour'"),
        (changed(caps=[]), "at least one cap"),
        (changed(caps=[5]), "caps[0]: found an integer, expected a record"),
        (changed(caps=[{"alias": "x"}]), "caps[x]: the key 'urn' is missing"),
        (changed(accepts=[1]), "accepts: expected a list of texts"),
        (changed(requires=[{"module": "x", "install": "y", "z": 1}]), "requires[0]: unknown key 'z'"),
    ],
)
def test_a_faulty_manifest_is_refused_with_the_place_and_the_reason(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_a_default_of_the_wrong_type_in_a_manifest_is_refused() -> None:
    data = build_manifest(GGUF).to_json().replace(b'"default": 512', b'"default": "512"')
    assert "found the text '512', expected an integer" in refusal(data)


def test_an_unknown_cap_of_a_manifest_lists_what_it_serves() -> None:
    with pytest.raises(CartdeckError, match="generate-text, model-info") as caught:
        build_manifest(GGUF).cap("chat")
    assert caught.value.code is Code.NO_SUCH_CAP


def test_reading_a_manifest_loads_nothing_for_authors_and_nothing_impure() -> None:
    program = (
        "import sys\n"
        "from cartdeck_protocol import UNIVERSAL_CAPS, CapUrn, Manifest, encode_value\n"
        "print(*sorted({'tomllib', 'importlib.resources', 'asyncio', 'msgpack', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == ""
