"""A schema is held to exactly or refused by name, before a token is made."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cartdeck_modelkit.constraint.guidance import ConstraintMaker, GuidanceConstraint
from cartdeck_modelkit.constraint.schema_limits import check_schema
from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_protocol.errors import CartdeckError, Code

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "json_schemas.json").read_text(encoding="utf-8")
)
WORDS = (b'{"', b'": ', b'":', b'", "', b"true", b"null", b" a", b"12", b"\xc3\xa4", b'"}')
END = 256 + len(WORDS)
CLOSING = frozenset(b'"}]')


def tokenize(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture(scope="module")
def maker() -> ConstraintMaker:
    """On a vocabulary of the 256 bytes, a few longer tokens and one that ends the text."""
    pieces = [*(bytes((byte,)) for byte in range(256)), *WORDS, b"<end>"]
    return ConstraintMaker(TokenTable(pieces=pieces, special=[END], end=[END], tokenize=tokenize))


def accepts(constraint: GuidanceConstraint, text: str) -> bool:
    """Whether the text can come of it, token by token, and end there."""
    path = constraint.fork()
    for token in tokenize(text):
        if not allows(path.mask(), token):
            return False
        path.accept(token)
    return path.is_complete or allows(path.mask(), END)


def allows(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


def error_of(maker: ConstraintMaker, schema: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        maker.from_json_schema(schema)
    return caught.value


REFUSED = {"not": "not", "propertyNames": "propertyNames", "lookahead_pattern": None}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_schema_is_held_to_exactly_or_refused_by_name(maker: ConstraintMaker, vector: dict[str, Any]) -> None:
    if vector["name"] in REFUSED:
        error = error_of(maker, vector["schema"])
        assert error.code is Code.UNSUPPORTED_SCHEMA
        assert error.argument == "json-schema"
        assert error.details.get("keyword") == REFUSED[vector["name"]]
        return
    constraint = maker.from_json_schema(vector["schema"])
    for text in vector["valid"]:
        assert accepts(constraint, text), text
    for text in vector["invalid"]:
        assert not accepts(constraint, text), text


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if one["name"] not in REFUSED], ids=lambda vector: vector["name"]
)
def test_whatever_is_drawn_to_its_end_is_valid(maker: ConstraintMaker, vector: dict[str, Any]) -> None:
    validator, constraint, ended = Draft202012Validator(vector["schema"]), maker.from_json_schema(vector["schema"]), 0
    for seed in range(30):
        text = drawn(constraint.fork(), random.Random(seed))
        if text is not None:
            ended += 1
            validator.validate(json.loads(text))
    assert ended


def drawn(constraint: GuidanceConstraint, dice: random.Random) -> str | None:
    """A text of tokens drawn evenly among those allowed, a closing one now and then; None if it finds no end."""
    data = b""
    for _ in range(400):
        if constraint.is_complete:
            return data.decode()
        mask = constraint.mask()
        allowed = [token for token in range(END + 1) if allows(mask, token)]
        closing = [token for token in allowed if token == END or token in CLOSING]
        token = dice.choice(closing if closing and dice.random() < 0.5 else allowed)
        if token == END:
            return data.decode()
        data += WORDS[token - 256] if token >= 256 else bytes((token,))
        constraint.accept(token)
    return None


def nested(depth: int, key: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {key: schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "keyword", "words"),
    [
        ({"$ref": "#"}, "$ref", "leads to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "$ref", "itself"),
        ({"$ref": "#/$defs/none"}, "$ref", "leads to nothing"),
        ({"$ref": "https://example.org/schema"}, "$ref", "another document"),
        ({"x-guidance": {"lenient": True}}, "x-guidance", "not taken"),
        ({"properties": {"a": {"maxLength": 10**9}}}, "maxLength", "at most 10,000"),
        (nested(5000, "items"), None, "nested more than 100 deep"),
        ({"enum": list(range(20_001))}, None, "more than 20,000 values"),
        ({"enum": ["x" * 300_000]}, None, "300,0"),
        ({"enum": []}, None, "nsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, None, "minimum"),
        ({"type": "strange"}, None, "strange"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "oneOf"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "uniqueItems"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if", "if"),
        ([], None, "found list"),
        (True, None, "found bool"),
    ],
)
def test_what_cannot_be_held_to_is_refused_by_name(
    maker: ConstraintMaker, schema: Any, keyword: str | None, words: str
) -> None:
    error = error_of(maker, schema)
    assert error.code is Code.UNSUPPORTED_SCHEMA
    assert words in str(error)
    assert error.details.get("keyword") == keyword


def test_a_schema_may_refer_to_itself_further_in() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "all": {"items": {"$ref": "#/properties/next"}}}}
    assert json.loads(check_schema(schema)) == schema


def test_the_order_of_keys_is_that_of_the_schema(maker: ConstraintMaker) -> None:
    properties = {"b": {"type": "integer"}, "a": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["b", "a"], "additionalProperties": False}
    constraint = maker.from_json_schema(schema)
    assert accepts(constraint, '{"b":1,"a":2}')
    assert not accepts(constraint, '{"a":2,"b":1}')


def test_white_space_has_a_bound_that_a_model_cannot_fill_its_tokens_with(maker: ConstraintMaker) -> None:
    constraint = maker.from_json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert accepts(constraint, "{\n" + " " * 36 + '"a": 1\n}')
    assert not accepts(constraint, "{" + "\n" * 41 + '"a": 1}')


def test_a_grammar_that_cannot_be_read_is_an_error(maker: ConstraintMaker) -> None:
    assert accepts(maker.from_lark('start: "a" | "b"'), "b")
    with pytest.raises(CartdeckError) as caught:
        maker.from_lark("start: nowhere")
    assert caught.value.code is Code.INVALID_GRAMMAR
    assert "nowhere" in str(caught.value)
