"""A frame's length is judged before its body is there: by kind, and without allocating for it."""

import tracemalloc
from typing import Any

import msgpack
import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code

KIB = 1024
Kind = wire.Kind
SMALL = [kind for kind in Kind if kind not in (Kind.HELLO, Kind.CHUNK, Kind.STREAM_START)]

FIELDS: dict[int, dict[int, Any]] = {
    Kind.CHUNK: {11: 0, 14: 0, 6: b""},
    Kind.STREAM_START: {11: 0},
    Kind.STREAM_END: {11: 0, 15: 0},
    Kind.CREDIT: {11: 0, 19: 1},
    Kind.REQ: {10: "cap:x"},
    Kind.LOG: {5: {"level": "info", "message": ""}},
    Kind.ERR: {5: {"code": "INTERNAL", "class": "internal", "message": ""}},
    Kind.HELLO: {5: {"protocol": 1, "api": 1, "limits": {}, "features": []}},
}


def most(kind: int, max_chunk: int = 256 * KIB) -> int:
    """What the specification says, in bytes of the body."""
    if kind in (Kind.CHUNK, Kind.STREAM_START):
        return max_chunk + KIB
    return KIB * KIB if kind == Kind.HELLO else 64 * KIB


def head(length: int, kind: int) -> bytes:
    return length.to_bytes(4, "big") + bytes((0x83, 1, kind))


def whole(kind: int, length: int) -> bytes:
    """A legal frame of exactly this length: an unknown key fills it."""
    fields: dict[int, Any] = {1: int(kind), 2: 0 if kind in (Kind.HELLO, Kind.HEARTBEAT) else 2, **FIELDS.get(kind, {})}
    fields[99] = b""
    room = length - len(msgpack.packb(fields))
    for size in range(room, room - 5, -1):  # the head of a bin grows with it
        body = msgpack.packb({**fields, 99: bytes(size)})
        if len(body) == length:
            return length.to_bytes(4, "big") + body
    raise AssertionError(length)


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_a_length_below_the_smallest_frame_is_refused_at_once(play: Any, kind: int, length: int) -> None:
    played = play()
    [event] = played.hear(head(length, kind)[:4])
    assert isinstance(event, wire.ConnectionDamaged)
    assert (event.error.code, event.error.frame) == (Code.PROTOCOL_VIOLATION, 1)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_the_largest_frame_of_its_kind_is_taken(play: Any, kind: int) -> None:
    played = play(wire.Role.CARTRIDGE if kind == Kind.REQ else wire.Role.HOST, greet=kind != Kind.HELLO)
    played.hear(whole(kind, most(kind)))
    assert played.end.error is None
    assert played.end.is_between_frames


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_one_byte_more_is_refused_as_soon_as_the_kind_is_there(play: Any, kind: int) -> None:
    played = play(greet=kind != Kind.HELLO)
    before, offset = played.heard_frames, played.heard_bytes
    pieces = [played.hear(bytes((one,))) for one in head(most(kind) + 1, kind)]
    [event] = [event for found in pieces for event in found]
    assert isinstance(event, wire.ConnectionDamaged)
    assert event.error.code is Code.FRAME_TOO_LARGE
    assert (event.error.frame, event.error.offset) == (before, offset)
    assert pieces.index([event]) == (3 if kind == Kind.HELLO else 6), "no kind may be larger than a HELLO"


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x80000000, 0x68656C6C])
def test_a_claim_of_gigabytes_is_refused_by_its_length_alone_and_costs_nothing(
    play: Any, kind: int, length: int
) -> None:
    played = play()
    tracemalloc.start()
    try:
        [event] = played.hear(head(length, kind)[:4])
        assert isinstance(event, wire.ConnectionDamaged)
        assert event.error.code is Code.FRAME_TOO_LARGE
        played.end.buffer()
        assert tracemalloc.get_traced_memory()[1] < 256 * KIB
    finally:
        tracemalloc.stop()


def test_only_a_hello_may_be_large_before_the_greeting(play: Any) -> None:
    played = play(greet=False, max_chunk=8 * KIB * KIB)
    [event] = played.hear(head(8 * KIB * KIB, Kind.CHUNK))
    assert event.error.code is Code.FRAME_TOO_LARGE


@pytest.mark.parametrize("max_chunk", [KIB, 64 * KIB, 8 * KIB * KIB])
def test_the_agreed_chunk_moves_the_limit_of_chunks_alone(play: Any, max_chunk: int) -> None:
    for kind in Kind:
        for extra in (0, 1):
            played = play(max_chunk=max_chunk)
            found = played.hear(head(most(kind, max_chunk) + extra, kind))
            assert [event.error.code for event in found] == [Code.FRAME_TOO_LARGE] * extra, kind


@pytest.mark.parametrize("max_chunk", [KIB, 256 * KIB, 5 * KIB * KIB])
@pytest.mark.parametrize("piece", [1000, 65_536, 10_000_000])
def test_frames_of_every_size_arrive_whole(play: Any, max_chunk: int, piece: int) -> None:
    played = play(wire.Role.CARTRIDGE, max_chunk=max_chunk, initial_credit=64)
    exchange = played.opened(asks=False)
    sizes = [0, 1, 127, 128, 8191, 8192, 65_535, 65_536, 65_537, max_chunk - 1, max_chunk]
    payloads = [bytes(range(256)) * (size // 256) + bytes(size % 256) for size in sizes if size <= max_chunk]
    data = b""
    for index, payload in enumerate(payloads):
        body = msgpack.packb({1: 3, 2: exchange.id, 11: 0, 14: index, 6: payload})
        data += len(body).to_bytes(4, "big") + body
    played.hear({1: 8, 2: exchange.id, 11: 0})
    found = [event for at in range(0, len(data), piece) for event in played.hear(data[at : at + piece])]
    assert [event.payload for event in found] == payloads


def test_the_buffer_is_never_without_room_and_grows_only_for_those_who_fill_it(play: Any) -> None:
    played = play()
    end = played.end
    exchange = played.opened(asks=True)
    first = len(end.buffer())
    assert first < 256 * KIB
    played.hear({1: 8, 2: exchange.id, 11: 0})
    frame = msgpack.packb({1: 5, 2: exchange.id, 5: {"level": "info", "message": "m" * 1000}})
    burst = (len(frame).to_bytes(4, "big") + frame) * 10_000
    events = 0
    largest = 0
    while burst:
        space = end.buffer()
        assert len(space) > 0
        largest = max(largest, len(space))
        size = min(len(space), len(burst))
        space[:size] = burst[:size]
        burst = burst[size:]
        events += len(end.received(size))
    assert events == 10_000
    assert first < largest <= 2 * KIB * KIB


def test_the_end_says_whether_the_bytes_so_far_end_inside_a_frame(play: Any, frame: Any) -> None:
    played = play()
    beat = frame({1: 7, 2: 0})
    for at in range(1, len(beat)):
        assert played.end.is_between_frames
        played.end.receive(beat[:at])
        assert not played.end.is_between_frames
        played.end.receive(beat[at:])
    assert played.end.is_between_frames


@pytest.mark.parametrize("length", [0, most(Kind.HELLO) + 1, 14_013_909, (1 << 32) - 1])
@pytest.mark.parametrize("start", [b"\x83\x01\x63", b"\x83\x02\x00", b"\xa3abc", b"\x83\x01\x03"])
def test_a_length_that_is_never_right_is_the_fault_whether_or_not_the_kind_is_there(
    play: Any, length: int, start: bytes
) -> None:
    data = length.to_bytes(4, "big") + start
    [at_once] = play().hear(data)
    [later] = play().hear(data[:4])
    assert (at_once.error.code, at_once.error.message) == (later.error.code, later.error.message)
