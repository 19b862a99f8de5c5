"""Values between steps: what becomes of one as an argument of another, and what an output must be."""

from pathlib import Path
from typing import Any

import pytest

from cartdeck import CartdeckError, Code
from cartdeck.plans.conformance import Conformance, OutputCheck
from cartdeck.plans.convert import as_item, as_value, can_stream
from cartdeck_protocol.caps import ArgumentDefinition, MediaUrn, OutputDefinition

TEXT, BYTES, JSON, NUMBER = "media:enc=utf-8", "media:image", "media:fmt=json;record", "media:numeric"


def argument(media: str, **more: Any) -> ArgumentDefinition:
    return ArgumentDefinition(name="x", media=MediaUrn.parse(media), documentation="", **more)


def output(media: str, *, is_sequence: bool = False) -> Conformance:
    return Conformance(OutputDefinition(media=MediaUrn.parse(media), documentation="", is_sequence=is_sequence))


@pytest.mark.parametrize(
    ("entry", "media", "value"),
    [
        (b"a", TEXT, b"a"), ("a", TEXT, "a"), ({"a": 1}, TEXT, '{"a": 1}'), ({"a": 1}, BYTES, b'{"a": 1}'),
        ({"a": 1}, JSON, {"a": 1}), (3, TEXT, "3"), ("a", BYTES, "a"), (b"3", NUMBER, b"3"),
        (Path("/f"), BYTES, Path("/f")),
    ],
)  # fmt: skip
def test_an_entry_as_the_whole_value_of_an_argument(entry: Any, media: str, value: Any) -> None:
    assert as_value(entry, argument(media)) == value


@pytest.mark.parametrize(
    ("entry", "media", "value"),
    [
        (b"a", TEXT, "a"), ("a", TEXT, "a"), (b'{"a":1}', JSON, {"a": 1}), ("a", BYTES, b"a"),
        ({"a": 1}, BYTES, b'{"a": 1}'), (b"2.5", NUMBER, 2.5), (Path("/f"), TEXT, Path("/f")), ([1], TEXT, "[1]"),
    ],
)  # fmt: skip
def test_an_entry_as_an_item_of_a_sequence(entry: Any, media: str, value: Any) -> None:
    assert as_item(entry, argument(media, is_sequence=True)) == value


def test_what_is_no_such_item_is_refused_by_name() -> None:
    with pytest.raises(CartdeckError, match="x: ") as caught:
        as_item(b"\xff", argument(TEXT))
    assert caught.value.argument == "x"


def test_numbers_and_what_chooses_an_instance_are_taken_whole() -> None:
    assert can_stream(argument(TEXT))
    assert can_stream(argument(NUMBER, is_sequence=True))
    assert not can_stream(argument(NUMBER))
    assert not can_stream(argument(TEXT, is_instance=True))


@pytest.mark.parametrize(
    ("media", "data", "is_right"),
    [
        (TEXT, "é".encode(), True), (TEXT, b"\xff", False), (BYTES, b"\xff", True), (JSON, b"{}", True),
        (JSON, b"[]", False), (JSON, b"{", False), (NUMBER, b"2", True), (NUMBER, b"two", False),
        ("media:f32", b"\0" * 8, True), ("media:f32", b"\0" * 7, False), ("media:f32", b"", False),
    ],
)  # fmt: skip
def test_a_whole_output_is_what_is_declared_or_not(media: str, data: bytes, is_right: bool) -> None:
    if is_right:
        output(media).check_whole(data)
    else:
        with pytest.raises(CartdeckError) as caught:
            output(media).check_whole(data)
        assert caught.value.code is Code.BAD_OUTPUT


def test_text_in_pieces_may_be_cut_between_characters_and_must_end() -> None:
    check = OutputCheck(output(TEXT), "cap", None)
    check.feed("é".encode()[:1])
    check.feed("é".encode()[1:])
    check.finish()
    check.feed("é".encode()[:1])
    with pytest.raises(CartdeckError, match="UTF-8"):
        check.finish()


def test_a_stream_of_another_kind_is_no_such_output() -> None:
    output(TEXT).check_stream("media:enc=utf-8;page", is_sequence=False)
    with pytest.raises(CartdeckError, match="found media:image, expected media:enc=utf-8"):
        output(TEXT).check_stream("media:image", is_sequence=False)
    with pytest.raises(CartdeckError, match="found a sequence, expected one value"):
        output(TEXT).check_stream(TEXT, is_sequence=True)


@pytest.mark.parametrize("pieces", [[b"ab", b"d"], [b"abcd"], [b"ab"], []])
def test_what_gives_back_its_input_gives_all_of_it_and_no_more(pieces: list[bytes]) -> None:
    check = OutputCheck(output("media:"), "identity", "abc")

    def feed() -> None:
        for piece in pieces:
            check.feed(piece)
        check.finish()

    with pytest.raises(CartdeckError, match="effect=none"):
        feed()
