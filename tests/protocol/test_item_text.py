"""The items of a sequence on a command line: read by their type, and a JSON list as all of them where that is plain."""

from typing import Any

import pytest

from cartdeck_protocol import CartdeckError, Code
from cartdeck_protocol.caps import ArgumentDefinition, MediaUrn
from cartdeck_protocol.caps.item_text import item_of_text, items_of_text


def sequence(media: str, **options: Any) -> ArgumentDefinition:
    return ArgumentDefinition(
        name="things", media=MediaUrn.parse(media), documentation="D.", is_sequence=True, **options
    )


TEXTS, NUMBERS = sequence("media:enc=utf-8;text"), sequence("media:integer;numeric;count", minimum=0)


@pytest.mark.parametrize(
    ("argument", "text", "items"),
    [
        (TEXTS, '["a", "b"]', ["a", "b"]),
        (TEXTS, "[]", []),
        (TEXTS, '["[\\"a\\"]"]', ['["a"]']),
        (TEXTS, "[1] is a footnote", ["[1] is a footnote"]),
        (TEXTS, "[1, 2]", ["[1, 2]"]),
        (TEXTS, "8", ["8"]),
        (NUMBERS, " [1, 2]", [1, 2]),
        (NUMBERS, "8", [8]),
        (sequence("media:numeric"), "[1, 2.5]", [1.0, 2.5]),
        (sequence("media:fmt=json;record"), '[{"a": 1}, {}]', [{"a": 1}, {}]),
        (sequence("media:fmt=json;record"), '{"a": 1}', [{"a": 1}]),
        (sequence("media:fmt=json;list"), "[1, 2]", [[1, 2]]),
        (sequence("media:fmt=json"), "[1, 2]", [[1, 2]]),
        (sequence("media:image"), '["a.png"]', [b'["a.png"]']),
    ],
)
def test_a_list_is_all_the_items_where_no_item_is_one(argument: ArgumentDefinition, text: str, items: Any) -> None:
    assert items_of_text(argument, text) == items


@pytest.mark.parametrize("text", ["[1, -2]", '[1, "a"]', "[1, ", "one", "-2"])
def test_a_wrong_item_is_named(text: str) -> None:
    with pytest.raises(CartdeckError, match="things") as caught:
        items_of_text(NUMBERS, text)
    assert caught.value.code is Code.BAD_ARGUMENT


def test_one_of_several_is_never_a_list() -> None:
    assert item_of_text(TEXTS, '["a"]') == '["a"]'
