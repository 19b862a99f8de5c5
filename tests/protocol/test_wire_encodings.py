"""Every legal encoding of the same map means the same; our own is only the quickest to read."""

from itertools import product
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol import wire
from cartdeck_protocol.wire.templates import encode_chunk, encode_plain_end, encode_whole

Kind = wire.Kind


def uint(value: int, form: int) -> bytes:
    """A number in one of the encodings that hold it; `form` chooses."""
    forms = [msgpack.packb(value)]
    for head, size, signed in (
        (0xCC, 1, False), (0xCD, 2, False), (0xCE, 4, False), (0xCF, 8, False),
        (0xD0, 1, True), (0xD1, 2, True), (0xD2, 4, True), (0xD3, 8, True),
    ):  # fmt: skip  # unsigned above signed
        if value < 1 << (8 * size - signed):
            forms.append(bytes((head,)) + value.to_bytes(size, "big"))
    return forms[form % len(forms)]


def binary(value: bytes, form: int) -> bytes:
    forms = [
        bytes((head,)) + len(value).to_bytes(size, "big") + value
        for head, size in ((0xC4, 1), (0xC5, 2), (0xC6, 4))
        if len(value) < 1 << 8 * size
    ]
    return forms[form % len(forms)]


def map_head(count: int, form: int) -> bytes:
    return (bytes((0x80 + count,)), b"\xde" + count.to_bytes(2, "big"), b"\xdf" + count.to_bytes(4, "big"))[form % 3]


def meaning(event: Any) -> tuple[Any, ...]:
    error = getattr(event, "error", None)
    payload = getattr(event, "payload", None)
    return type(event), payload, None if error is None else (error.code, error.message)


forms = st.integers(0, 8)


@settings(max_examples=150, deadline=None)
@given(
    payload=st.binary(max_size=300),
    index=st.sampled_from([0, 0, 0, 1, 300, 70_000]),
    stream=st.sampled_from([0, 0, 0, 1, 200]),
    order=st.permutations([2, 11, 14, 6, 99]),
    choices=st.lists(forms, min_size=12, max_size=12),
    cut=st.integers(0, 400),
)
def test_a_chunk_in_any_encoding_means_the_same_as_in_ours(
    play: Any, payload: bytes, index: int, stream: int, order: list[int], choices: list[int], cut: int
) -> None:
    ours, other = play(wire.Role.CARTRIDGE), play(wire.Role.CARTRIDGE)
    for played in (ours, other):
        played.opened(asks=False)
        played.hear({1: 8, 2: 2, 11: 0})
    body = map_head(6, choices[0]) + uint(1, choices[1]) + uint(3, choices[2])
    values = {2: 2, 11: stream, 14: index}
    for key, form, value_form in zip(order, choices[3:], choices[7:], strict=False):
        value = binary(payload, value_form) if key in (6, 99) else uint(values[key], value_form)
        body += uint(key, form) + value
    data = len(body).to_bytes(4, "big") + body
    expected = ours.hear(b"".join(encode_chunk(2, stream, index, payload)))
    found = other.hear(data[:cut]) + other.hear(data[cut:])
    assert list(map(meaning, found)) == list(map(meaning, expected))
    assert len(found) == 1
    assert ours.said() == other.said()


@settings(max_examples=60, deadline=None)
@given(
    payload=st.binary(max_size=300),
    stream=st.sampled_from([0, 0, 0, 1]),
    choices=st.lists(forms, min_size=10, max_size=10),
    is_cancelled=st.booleans(),
)
def test_an_answer_in_any_encoding_means_the_same_as_in_ours(
    play: Any, payload: bytes, stream: int, choices: list[int], is_cancelled: bool
) -> None:
    ours, other = play(wire.Role.HOST), play(wire.Role.HOST)
    for played in (ours, other):
        exchange = played.opened(asks=True)
        if is_cancelled:
            played.end.cancel(exchange)
    start = map_head(4, choices[0]) + b"\x01\x08\x02" + uint(2, choices[1]) + b"\x0b" + uint(stream, choices[2])
    start += b"\x06" + binary(payload, choices[3])
    end = map_head(3, choices[4]) + b"\x01\x04\x02" + uint(2, choices[5]) + b"\x05\x81\xa8progress"
    end += uint(1, choices[6]) if choices[7] % 2 else b"\xcb\x3f\xf0" + bytes(6)
    for said, body in ((encode_whole(2, stream, payload), start), ([encode_plain_end(2)], end)):
        expected = ours.hear(b"".join(said))
        found = other.hear(len(body).to_bytes(4, "big") + body)
        assert list(map(meaning, found)) == list(map(meaning, expected))
        assert ours.said() == other.said()
    assert [type(event) for event in expected] == [wire.Finished]


@pytest.mark.parametrize("request_id", [2, 0xFFFFFFFE, 0x100000000])
@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 70_000])
def test_an_answer_to_any_request_is_written_as_legal_frames(frames_in: Any, request_id: int, size: int) -> None:
    parts = encode_whole(request_id, 0, bytes(size))
    assert frames_in(b"".join(parts)) == [{1: 8, 2: request_id, 11: 0, 6: bytes(size)}]
    assert len(parts) == (1 if size < 8192 else 2), "a large payload is not copied"
    assert frames_in(encode_plain_end(request_id)) == [{1: 4, 2: request_id, 5: {"progress": 1.0}}]


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.HEARTBEAT])
@pytest.mark.parametrize("form", range(3))
def test_the_kind_is_found_in_every_encoding_one_byte_at_a_time(play: Any, kind: int, form: int) -> None:
    meta = {"protocol": 1, "api": 1, "limits": {}, "features": []} if kind == Kind.HELLO else {}
    expected = wire.HelloReceived if kind == Kind.HELLO else wire.HeartbeatReceived
    for key_form, kind_form in product(range(9), range(9)):
        played = play(greet=kind != Kind.HELLO)
        body = map_head(3, form) + uint(1, key_form) + uint(kind, kind_form) + b"\x02\x00\x05" + msgpack.packb(meta)
        data = len(body).to_bytes(4, "big") + body
        found = [event for at in range(len(data)) for event in played.hear(data[at : at + 1])]
        assert [type(event) for event in found] == [expected]


@pytest.mark.parametrize(
    ("request_id", "stream", "index"),
    [
        (2, 0, 0),
        (0xFFFFFFFE, 0xFFFF, 0xFFFFFFFF),
        (0x100000000, 0, 0),
        (2, 0x10000, 0),
        (2, 0, 0x100000000),
        ((1 << 63) - 2, 1 << 40, 1 << 50),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 70_000])
def test_a_chunk_of_any_numbers_is_written_as_one_legal_frame(
    frames_in: Any, request_id: int, stream: int, index: int, size: int
) -> None:
    parts = encode_chunk(request_id, stream, index, memoryview(bytes(size)))
    assert frames_in(b"".join(parts)) == [{1: 3, 2: request_id, 11: stream, 14: index, 6: bytes(size)}]
    assert len(parts) == (1 if size < 8192 else 2), "a large payload is not copied"


def test_requests_go_on_past_four_thousand_million(play: Any) -> None:
    host, cartridge = play(wire.Role.HOST).end, play(wire.Role.CARTRIDGE).end
    host.last_own_id = cartridge.last_their_id = 0xFFFFFFFC
    for _ in range(4):
        exchange = host.request("cap:x")
        [event] = cartridge.receive(b"".join(host.outgoing()))
        stream = cartridge.open_stream(event.exchange)
        stream.write(b"1")
        found = host.receive(b"".join(cartridge.outgoing()))
        cartridge.end(event.exchange)
        found += host.receive(b"".join(cartridge.outgoing()))
        assert [type(one) for one in found] == [
            wire.StreamStarted, wire.ChunkReceived, wire.StreamEnded, wire.Finished,
        ]  # fmt: skip  # one line
        assert not exchange.is_open
    assert host.last_own_id > 0x100000000
