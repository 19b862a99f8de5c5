"""Values of arguments: there and back, what a command line's text stands for, and what is refused how."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck_protocol import CartdeckError, Code
from cartdeck_protocol.caps import (
    ArgumentDefinition,
    MediaUrn,
    ValueKind,
    check_value,
    decode_value,
    describe_value,
    encode_value,
)


def argument(media: str, **fields: Any) -> ArgumentDefinition:
    return ArgumentDefinition(name="thing", media=MediaUrn.parse(media), documentation="A thing.", **fields)


TEXT = argument("media:enc=utf-8;prompt")
INTEGER = argument("media:integer;numeric", minimum=-5, maximum=10)
NUMBER = argument("media:numeric")
BOOLEAN = argument("media:boolean")
JSON = argument("media:fmt=json")
RECORD = argument("media:enc=utf-8;fmt=json;record")
RECORDS = argument("media:fmt=json;list;record")
TEXTS = argument("media:enc=utf-8;fmt=json;list")
INTEGERS = argument("media:fmt=json;integer;list;numeric")
BYTES = argument("media:image")
ALL = (TEXT, INTEGER, NUMBER, BOOLEAN, JSON, RECORD, RECORDS, TEXTS, INTEGERS, BYTES)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
VALUES: tuple[tuple[ArgumentDefinition, st.SearchStrategy[Any]], ...] = (
    (TEXT, st.text()),
    (INTEGER, st.integers(-5, 10)),
    (argument("media:integer;numeric"), st.integers(-(2**63) + 1, 2**63 - 1)),
    (NUMBER, st.floats(allow_nan=False, allow_infinity=False)),
    (BOOLEAN, st.booleans()),
    (JSON, JSON_VALUES.filter(lambda value: not isinstance(value, str))),
    (RECORD, st.dictionaries(st.text(), JSON_VALUES)),
    (TEXTS, st.lists(st.text())),
    (INTEGERS, st.lists(st.integers(-(2**63) + 1, 2**63 - 1))),
    (BYTES, st.binary()),
)


def refusal(found: ArgumentDefinition, value: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        encode_value(found, value)
    assert caught.value.argument == "thing"
    return caught.value


@given(st.sampled_from(VALUES).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_a_value_comes_back_as_it_went(pair: tuple[ArgumentDefinition, Any]) -> None:
    found, value = pair
    data = encode_value(found, value)
    assert decode_value(found, data) == value
    assert encode_value(found, data) == data
    assert check_value(found, value) == value


def decoded_or_error(found: ArgumentDefinition, data: bytes) -> Any:
    try:
        return decode_value(found, data)
    except CartdeckError as error:
        return error


@given(st.sampled_from(ALL), st.binary(max_size=30))
def test_any_bytes_give_a_value_of_the_kind_or_a_typed_error(found: ArgumentDefinition, data: bytes) -> None:
    value = decoded_or_error(found, data)
    if isinstance(value, CartdeckError):
        assert value.code in (Code.BAD_ARGUMENT, Code.INVALID_TEXT)
        assert value.argument == "thing"
    else:
        assert decode_value(found, encode_value(found, data)) == value


def test_the_kind_of_a_value_follows_from_its_media_urn() -> None:
    kinds = [found.kind for found in ALL]
    assert kinds == [
        ValueKind.TEXT,
        ValueKind.INTEGER,
        ValueKind.NUMBER,
        ValueKind.BOOLEAN,
        *[ValueKind.JSON] * 5,
        ValueKind.BYTES,
    ]


@pytest.mark.parametrize(
    ("found", "text", "value"),
    [
        (INTEGER, " 7 ", 7),
        (INTEGER, "-5", -5),
        (NUMBER, "1e3", 1000.0),
        (BOOLEAN, "True", True),
        (JSON, '{"a": [1, null]}', {"a": [1, None]}),
        (TEXT, "5", "5"),
        (BYTES, "é", "é".encode()),
        (TEXTS, '["a", "b"]', ["a", "b"]),
        (TEXTS, "\n", ["\n"]),
        (TEXTS, "[", ["["]),
        (TEXTS, "5", ["5"]),
        (TEXTS, '"quoted"', ['"quoted"']),
        (INTEGERS, "[1, 2]", [1, 2]),
    ],
)
def test_a_text_stands_for_a_value_as_on_a_command_line(found: ArgumentDefinition, text: str, value: Any) -> None:
    assert decode_value(found, encode_value(found, text)) == value


@pytest.mark.parametrize(
    ("found", "value", "message"),
    [
        (INTEGER, "seven", "thing: found the text 'seven', expected an integer from -5 to 10"),
        (INTEGER, 11, "thing: found the number 11, expected an integer from -5 to 10"),
        (INTEGER, 7.0, "thing: found the number 7.0, expected an integer from -5 to 10"),
        (INTEGER, True, "thing: found true, expected an integer from -5 to 10"),
        (INTEGER, None, "thing: found nothing, expected an integer from -5 to 10"),
        (INTEGER, "9" * 5000, "expected an integer from -5 to 10"),
        (INTEGER, 10**500, "thing: found the number beyond 64 bits, expected an integer from -5 to 10"),
        (NUMBER, math.nan, "thing: found the number nan, expected a number"),
        (NUMBER, "inf", "expected a number"),
        (NUMBER, 10**400, "expected a number"),
        (NUMBER, False, "thing: found false, expected a number"),
        (BOOLEAN, "yes", "thing: found the text 'yes', expected true or false"),
        (BOOLEAN, 1, "thing: found the number 1, expected true or false"),
        (TEXT, 5, "thing: found the number 5, expected text"),
        (JSON, [math.nan], "that JSON cannot carry"),
        (JSON, {1, 2}, "that JSON cannot carry"),
        (JSON, "{", "which is no JSON"),
        (JSON, b"{", "which is no JSON"),
        (RECORD, [1], "expected a JSON record"),
        (RECORDS, [{}, 1], "expected a JSON list of records"),
        (TEXTS, {"a": 1}, "expected a JSON list of texts"),
        (TEXTS, ["a", 1], "found the number 1, expected a JSON list of texts"),
        (INTEGERS, [1.5], "found the number 1.5, expected a JSON list of integers"),
        (BYTES, 5, "thing: found the number 5, expected bytes"),
        (TEXT, object, "found the type <class 'object'>, expected text"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_found_and_wanted(
    found: ArgumentDefinition, value: Any, message: str
) -> None:
    error = refusal(found, value)
    assert error.code is Code.BAD_ARGUMENT
    assert message in str(error)
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    ("found", "value"), [(TEXT, b"ab\xff"), (INTEGER, b"\xff"), (TEXT, "\ud83d"), (JSON, ["\ud83d"]), (BYTES, "\ud83d")]
)
def test_what_is_no_unicode_is_invalid_text(found: ArgumentDefinition, value: Any) -> None:
    assert refusal(found, value).code is Code.INVALID_TEXT


@pytest.mark.parametrize("data", [b"NaN", b"-Infinity", b"1e999", b"true", b"1 2", b"", b"01", b"1.0e", b"[1]"])
def test_bytes_that_are_no_finite_json_number_are_refused(data: bytes) -> None:
    assert refusal(NUMBER, data).code is Code.BAD_ARGUMENT
    assert refusal(INTEGER, data).code is Code.BAD_ARGUMENT


@pytest.mark.parametrize("data", [b'{"a": NaN}', b"[1e999]", b"[" * 100_000])
def test_json_that_cannot_be_read_back_elsewhere_is_refused(data: bytes) -> None:
    assert refusal(JSON, data).code is Code.BAD_ARGUMENT


def test_choices_bind() -> None:
    found = argument("media:enc=utf-8", choices=("transcribe", "translate"))
    assert encode_value(found, "translate") == b"translate"
    assert "expected one of transcribe, translate" in str(refusal(found, "sing"))
    assert refusal(found, b"sing").code is Code.BAD_ARGUMENT


def test_equal_numbers_have_equal_bytes() -> None:
    assert encode_value(NUMBER, 1) == encode_value(NUMBER, "1.00") == encode_value(NUMBER, b"1e0") == b"1.0"
    assert encode_value(INTEGER, "+5") == encode_value(INTEGER, 5) == b"5"


def test_the_keys_of_json_keep_their_order() -> None:
    assert encode_value(RECORD, {"b": 1, "a": 2}) == b'{"b":1,"a":2}'
    assert list(decode_value(RECORD, b'{"b": 1, "a": 2}')) == ["b", "a"]


def test_a_tuple_is_a_list_and_a_memoryview_is_bytes() -> None:
    assert json.loads(encode_value(TEXTS, ("a", "b"))) == ["a", "b"]
    assert encode_value(BYTES, memoryview(b"abc")) == b"abc"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (INTEGER, "an integer from -5 to 10"),
        (argument("media:numeric", minimum=0), "a number of at least 0"),
        (argument("media:numeric", maximum=0.5), "a number of at most 0.5"),
        (argument("media:integer;numeric", choices=(1, 2)), "one of 1, 2"),
        (TEXTS, "a JSON list of texts"),
        (argument("media:fmt=json;list"), "a JSON list"),
        (JSON, "a JSON value"),
        (BYTES, "bytes"),
    ],
)
def test_what_an_argument_takes_is_said_in_a_few_words(found: ArgumentDefinition, words: str) -> None:
    assert describe_value(found) == words


def test_an_integer_too_long_to_print_is_refused_all_the_same() -> None:
    for found in (INTEGER, NUMBER, TEXT, JSON):
        assert refusal(found, 10**5000).code is Code.BAD_ARGUMENT
