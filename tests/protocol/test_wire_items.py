"""Items of a sequence: free of chunk bounds, bounded in size, and nothing but plain msgpack."""

from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code

KIB = 1024
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=40)
)
keys = st.text(max_size=3) | st.integers(0, 9)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


def fed(data: bytes, cuts: list[int], **options: int) -> list[Any]:
    decoder = wire.ItemDecoder(**options)
    found: list[Any] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        found += decoder.feed(data[begin:end])
    decoder.finish()
    return found


@settings(max_examples=60, deadline=None)
@given(items=st.lists(plain, max_size=8), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same_items(items: list[Any], cuts: list[int]) -> None:
    assert fed(b"".join(map(wire.encode_item, items)), cuts) == items


def test_items_come_as_soon_as_they_are_whole() -> None:
    decoder = wire.ItemDecoder()
    data = wire.encode_item({"a": [1, 2]}) + wire.encode_item("zwei")
    found = [(at, item) for at in range(len(data)) for item in decoder.feed(data[at : at + 1])]
    assert found == [(len(wire.encode_item({"a": [1, 2]})) - 1, {"a": [1, 2]}), (len(data) - 1, "zwei")]


@pytest.mark.parametrize("item", [{"a": [1, 2.5]}, "text", bytes(300), [[]], 1 << 40])
def test_a_sequence_that_ends_inside_an_item_is_damage(item: Any) -> None:
    data = wire.encode_item(item)
    for cut in range(1, len(data)):
        decoder = wire.ItemDecoder()
        assert decoder.feed(wire.encode_item(1) + data[:cut]) == [1]
        with pytest.raises(CartdeckError) as caught:
            decoder.finish()
        assert caught.value.code is Code.PROTOCOL_VIOLATION
        assert f"{cut} bytes of it came" in caught.value.message


@pytest.mark.parametrize("piece", [1, 7, 100, 1023, 1024, 1025, 5000])
def test_an_item_above_the_limit_is_damage_however_it_is_cut(piece: int) -> None:
    for size, is_too_large in ((KIB - 3, False), (KIB - 2, True), (3 * KIB, True)):
        data = wire.encode_item(1) + wire.encode_item(bytes(size)) + wire.encode_item(2)
        decoder = wire.ItemDecoder(KIB)
        found: list[Any] = []
        try:
            for at in range(0, len(data), piece):
                found += decoder.feed(data[at : at + piece])
            code = None
        except CartdeckError as error:
            code = error.code
        assert code is (Code.FRAME_TOO_LARGE if is_too_large else None), (size, found)


def test_an_item_is_refused_before_the_rest_of_it_comes() -> None:
    decoder = wire.ItemDecoder(KIB)
    decoder.feed(b"\xc6\x3f\xff\xff\xff" + bytes(KIB - 5))
    with pytest.raises(CartdeckError) as caught:
        decoder.feed(b"\x00")
    assert caught.value.code is Code.FRAME_TOO_LARGE


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # an array, and a map, of four thousand million values
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 5000,  # an array in an array in an array …
        b"\x81\xa1a" * 5000,
        b"\xc1",
        b"\xd4\x05\x00",
        b"\xd6\xff\x00\x00\x00\x01",  # a timestamp
        b"\xc7\x00\x05",
        b"\x91\xd6\xff\x00\x00\x00\x01",
        b"\xa2\xff\xfe",
        b"\x81\x90\x01",  # a list as a key
    ],
    ids=lambda data: data[:6].hex(),
)
@pytest.mark.parametrize("piece", [1, 10_000])
def test_what_is_no_plain_value_is_damage(data: bytes, piece: int) -> None:
    with pytest.raises(CartdeckError) as caught:
        fed(data, list(range(0, len(data), piece)))
    assert caught.value.code is Code.PROTOCOL_VIOLATION
    assert caught.value.message.startswith("a sequence holds what is not a msgpack value: ")
    assert not caught.value.message.endswith(": ")


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_bytes_at_random_are_items_or_damage(data: bytes, cut: int) -> None:
    try:
        fed(data, [cut], max_item=KIB)
        code = Code.PROTOCOL_VIOLATION
    except CartdeckError as error:
        code = error.code
    assert code in (Code.PROTOCOL_VIOLATION, Code.FRAME_TOO_LARGE)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1 << 70, {"a": [lambda: None]}, "\udc80", msgpack])
def test_a_value_that_is_no_item_is_refused_to_its_maker(value: Any) -> None:
    with pytest.raises(CartdeckError) as caught:
        wire.encode_item(value)
    assert caught.value.code is Code.BAD_ARGUMENT
