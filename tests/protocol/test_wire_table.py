"""Each row of the table broken in each way: the connection ends, and the error says where."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire.kinds import KEYS, META, TYPES, UINT
from cartdeck_protocol.wire.limits import MAX_DEPTH

Key, Kind = wire.Key, wire.Kind

RIGHT: dict[int, Any] = {
    Key.PAYLOAD: b"x", Key.CAP: "cap:x", Key.STREAM: 0, Key.MEDIA: "media:", Key.CHUNK_INDEX: 0, Key.CHUNK_COUNT: 0,
    Key.IS_SEQUENCE: False, Key.CREDIT: 1, Key.NAME: "n",
}  # fmt: skip
RIGHT_META: dict[type, Any] = {int: 1, str: "t", dict: {}, list: [], bool: True, bytes: b"", float: 0.5}
EXT = msgpack.ExtType(5, b"x")
WRONG: dict[type, list[Any]] = {
    int: [True, -1, 1 << 63, 1.0, "1", b"1", None, [1], {}],
    str: [b"x", 1, None, ["x"], {}, True],
    bytes: ["x", 1, None, [b"x"], {}, False],
    bool: [0, 1, None, "true", b"", []],
    dict: [None, [], "x", b"x", 1, True],
    list: [None, {}, "x", b"x", 1, True],
    float: [None, True, "0.5", b"", [], {}],
}


def right(kind: int, *, allowed: bool = True) -> dict[int, Any]:
    """A frame of this kind that keeps to its row."""
    required, others = KEYS[kind]
    fields: dict[int, Any] = {1: int(kind), 2: 0 if kind in (Kind.HELLO, Kind.HEARTBEAT) else 2}
    for key in (*required[2:], *(others if allowed else ())):
        fields[int(key)] = right_meta(kind) if key == Key.META else RIGHT[key]
    return fields


def right_meta(kind: int) -> dict[str, Any]:
    return {name: RIGHT_META[types[-1]] for name, (types, _) in META[kind].items()}


def required_keys() -> list[Any]:
    return [
        pytest.param(kind, key, id=f"{kind.name}-{key.name}")
        for kind in Kind
        for key in KEYS[kind][0]
        if key != Key.KIND
    ]


def rows() -> list[Any]:
    return [
        pytest.param(kind, key, id=f"{kind.name}-{key.name}")
        for kind in Kind
        for key in (*KEYS[kind][0], *KEYS[kind][1])
    ]


def meta_rows(*kinds: int) -> list[Any]:
    return [pytest.param(kind, name, id=f"{Kind(kind).name}-{name}") for kind in kinds for name in META[kind]]


def wrong_metas(kind: int, name: str) -> list[dict[str, Any]]:
    """The meta of this kind with one field missing, if it is required, and of each wrong type."""
    types, is_required = META[kind][name]
    others = {key: value for key, value in right_meta(kind).items() if key != name}
    wrong = [{**others, name: value} for value in WRONG[types[-1]] if value != 1 << 63]
    return [*wrong, others] if is_required else wrong


def damage(play: Callable[..., Any], bad: dict[Any, Any] | bytes) -> wire.RemoteProtocolError:
    """What a bad frame behind a good one leads to: the good one's event is kept, then the connection is over."""
    played = play()
    before, offset = played.heard_frames, played.heard_bytes
    good = {1: 5, 2: 0, 5: {"level": "info", "message": "good"}}
    found = played.hear(good, bad)
    assert [type(event) for event in found] == [wire.ConnectionLogged, wire.ConnectionDamaged]
    error = found[1].error
    assert played.end.error is error
    assert error.frame == before + 1
    assert error.offset == offset + len(msgpack.packb(good)) + 4
    assert error.details["frame"] == error.frame
    assert error.details["offset"] == error.offset
    assert error.details.get("key") == error.key
    assert played.hear(good) == [], "nothing comes after it"
    return error


@pytest.mark.parametrize(("kind", "key"), required_keys())
def test_a_frame_without_a_required_key_ends_the_connection(play: Any, kind: int, key: int) -> None:
    fields = right(kind)
    del fields[int(key)]
    error = damage(play, fields)
    assert error.code is Code.PROTOCOL_VIOLATION
    assert error.key == Key(key).name.lower()
    assert "lacks" in error.message


@pytest.mark.parametrize(("kind", "key"), rows())
def test_a_key_of_a_wrong_type_ends_the_connection(play: Any, kind: int, key: int) -> None:
    for value in WRONG[TYPES[key]]:
        error = damage(play, {**right(kind), int(key): value})
        assert error.code is Code.PROTOCOL_VIOLATION
        assert error.key == Key(key).name.lower(), value


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_an_extension_type_is_refused_wherever_it_stands(play: Any, kind: int) -> None:
    keys = [key for key in (*KEYS[kind][0], *KEYS[kind][1]) if key != Key.KIND]
    for value in (EXT, msgpack.ExtType(5, b""), msgpack.Timestamp(1), msgpack.Timestamp(1, 5), msgpack.Timestamp(-1)):
        for key in (*keys, 99):
            assert damage(play, {**right(kind), int(key): value}).code is Code.PROTOCOL_VIOLATION
        assert damage(play, {**right(kind), 99: [{"a": value}]}).code is Code.PROTOCOL_VIOLATION


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_a_frame_with_every_required_key_and_no_other_keeps_to_the_table(play: Any, kind: int) -> None:
    played = play(wire.Role.CARTRIDGE if kind == Kind.REQ else wire.Role.HOST, greet=kind != Kind.HELLO)
    played.hear(right(kind, allowed=False))
    assert played.end.error is None


@pytest.mark.parametrize("kind", [2, 10, 11, 14, 63, 127, 128, 255, 1 << 20, 1 << 40])
def test_an_unknown_kind_ends_the_connection(play: Any, kind: int) -> None:
    error = damage(play, {1: kind, 2: 2})
    assert error.code is Code.PROTOCOL_VIOLATION
    assert error.key == "kind"
    assert f"unknown kind {kind}" in error.message


@pytest.mark.parametrize("value", [0, -1, True, None, "x", b"x", 1.5, [], {}, [[1], {"a": 2}], {5: 6}])
def test_an_unknown_key_is_ignored_whatever_it_holds(play: Any, value: Any) -> None:
    played = play()
    [event] = played.hear({1: 7, 2: 0, 5: {"rss_bytes": 3}, 3: value, 99: value, 1 << 40: value, -5: value})
    assert event.rss_bytes == 3


@pytest.mark.parametrize("kind", [1, 7, 4])
def test_a_key_of_another_row_is_ignored(play: Any, kind: int) -> None:
    played = play(wire.Role.CARTRIDGE if kind == 1 else wire.Role.HOST)
    request_id = played.opened(asks=True).id if kind == 4 else 0 if kind == 7 else 2
    assert len(played.hear({1: kind, 2: request_id, 10: "cap:x", 19: "not a credit", 14: -1})) == 1


@pytest.mark.parametrize("key", ["kind", b"kind", 5.0, 0.5, None, False, True, 2.0])
def test_a_key_that_is_no_whole_number_is_refused_also_where_it_equals_one(play: Any, key: Any) -> None:
    body = b"\x83\x01\x07\x02\x00" + msgpack.packb(key) + b"\x80"
    assert damage(play, len(body).to_bytes(4, "big") + body).code is Code.PROTOCOL_VIOLATION


def test_a_key_that_stands_twice_is_refused_at_the_top_and_inside(play: Any) -> None:
    pair, twice = msgpack.packb("a") + b"\x01", b"\x82" + (msgpack.packb("a") + b"\x01") * 2
    top = b"\x83\x01\x07\x02\x00\x02\x00"
    for body in (
        top,
        b"\x83\x01\x07\x02\x00\x05" + twice,
        b"\x83\x01\x07\x02\x00\x05\x81" + pair[:-1] + twice,
        b"\x83\x01\x07\x02\x00\x63\x91" + twice,
    ):
        error = damage(play, len(body).to_bytes(4, "big") + body)
        assert error.code is Code.PROTOCOL_VIOLATION
        assert "twice" in error.message


@pytest.mark.parametrize(
    "body",
    [
        b"\x82\x01\x07\x02\x00\x00",  # a byte behind the map
        b"\x82\x01\x07\x02\x00\x82\x01\x07\x02\x00",  # a second map
        b"\x83\x01\x07\x02\x00",  # a map that ends early
        b"\x82\x01\x07\x02\xcf\x00",  # a number that ends early
        b"\x82\x01\x05\x02\x00\x05",
        b"\x83\x01\x07\x02\x00\xc1\xc1",  # a byte that msgpack does not use
        b"\x83\x01\x07\x02\x00\x63\xa2\xff\xfe",  # text that is not UTF-8
        b"\x83\x01\x07\x02\x00\x63\xdb\xff\xff\xff\xff",  # text that claims 4 GiB
        b"\x83\x01\x07\x02\x00\x63\xc6\xff\xff\xff\xff",
        b"\x83\x01\x07\x02\x00\x63\xdd\xff\xff\xff\xff",
        b"\x83\x01\x07\x02\x00\x63\xdf\xff\xff\xff\xff",
        b"\x83\x01\x07\x02\x00\x81\x00\x00",  # a map as a key
        b"\x83\x01\x07\x02\x00\x91\x00\x00",  # a list as a key
        b"\x82\x02\x00\x01\x07",  # the kind is not first
        b"\x9f\xfd\x74\xf7\xdd\x74\xff\xfd\xbd",
        b"\xde\x00",
        b"\xdf\xff\xff\xff\xff\x01\x07",
        b"\x80\x80\x80\x80\x80",
        b"hello, I print to stdout\n",
        bytes(64),
    ],
    ids=lambda body: body[:9].hex(),
)
def test_a_body_that_is_not_one_map_ends_the_connection(play: Any, body: bytes) -> None:
    assert damage(play, len(body).to_bytes(4, "big") + body).code is Code.PROTOCOL_VIOLATION


@pytest.mark.parametrize("shape", ["array", "map", "mixed"])
def test_a_meta_may_nest_sixteen_levels_and_no_more(play: Any, shape: str) -> None:
    played = play()
    [event] = played.hear({1: 7, 2: 0, 5: nested(MAX_DEPTH, shape)})
    assert isinstance(event, wire.HeartbeatReceived)
    for levels in (MAX_DEPTH + 1, 200, 10_000):
        # msgpack's own encoder gives up before the last
        body = b"\x83\x01\x07\x02\x00\x05" + nested_bytes(levels, shape)
        error = damage(play, len(body).to_bytes(4, "big") + body)
        assert error.code is Code.PROTOCOL_VIOLATION


def nested(levels: int, shape: str) -> Any:
    value: Any = 0
    for level in range(levels, 0, -1):
        value = [value] if level > 1 and (shape == "array" or (shape == "mixed" and level % 2)) else {"a": value}
    return value


def nested_bytes(levels: int, shape: str) -> bytes:
    parts = [
        b"\x91" if n and (shape == "array" or (shape == "mixed" and n % 2)) else b"\x81\xa1a" for n in range(levels)
    ]
    return b"".join(parts) + b"\x00"


def test_a_value_under_an_unknown_key_that_nests_without_end_is_refused(play: Any) -> None:
    body = b"\x83\x01\x07\x02\x00\x63" + b"\x91" * 10_000 + b"\x00"
    assert damage(play, len(body).to_bytes(4, "big") + body).code is Code.PROTOCOL_VIOLATION


@pytest.mark.parametrize("key", [1, 1.5, b"a", None, True])
@pytest.mark.parametrize("level", [1, 2, 5])
def test_a_key_of_a_meta_that_is_no_text_is_refused_at_each_level(play: Any, key: Any, level: int) -> None:
    meta: Any = {key: 1}
    for _ in range(level - 1):
        meta = {"a": [meta]}
    error = damage(play, {1: 7, 2: 0, 5: meta})
    assert error.key == "meta"
    assert "text" in error.message


@pytest.mark.parametrize(("kind", "name"), meta_rows(Kind.HELLO))
def test_a_hello_with_a_wrong_field_ends_the_connection(play: Any, kind: int, name: str) -> None:
    for meta in wrong_metas(kind, name):
        [event] = play(greet=False).hear({1: kind, 2: 0, 5: meta})
        assert isinstance(event, wire.ConnectionDamaged), meta
        assert (event.error.code, event.error.key, event.error.frame) == (Code.PROTOCOL_VIOLATION, "meta", 0)
        assert name in event.error.message


@pytest.mark.parametrize(("kind", "name"), meta_rows(Kind.LOG, Kind.ERR, Kind.HEARTBEAT))
def test_a_wrong_field_in_a_frame_about_the_connection_ends_it(play: Any, kind: int, name: str) -> None:
    for meta in wrong_metas(kind, name):
        error = damage(play, {1: kind, 2: 0, 5: meta})
        assert (error.code, error.key) == (Code.PROTOCOL_VIOLATION, "meta"), meta
        assert name in error.message


@pytest.mark.parametrize("name", META[Kind.REQ])
def test_a_request_with_a_wrong_field_is_answered_with_an_error(play: Any, name: str) -> None:
    for meta in wrong_metas(Kind.REQ, name):
        played = play()
        assert played.hear({1: 1, 2: played.their_id(), 10: "cap:x", 5: meta}) == []
        [answer] = played.said()
        assert (answer[1], answer[5]["code"]) == (Kind.ERR, "PROTOCOL_VIOLATION"), meta
        assert name in answer[5]["message"]
        assert played.is_well()


@pytest.mark.parametrize(("kind", "name"), meta_rows(Kind.END, Kind.ERR))
def test_a_terminal_with_a_wrong_field_is_a_failure_of_that_request_alone(play: Any, kind: int, name: str) -> None:
    for meta in wrong_metas(kind, name):
        for has_cancelled in (False, True):
            played = play()
            exchange = played.opened(asks=True)
            if has_cancelled:
                played.end.cancel(exchange)
                played.said()
            [event] = played.hear({1: kind, 2: exchange.id, 5: meta})
            assert isinstance(event, wire.Failed), meta
            assert event.error.code is Code.PROTOCOL_VIOLATION
            assert name in event.error.message
            assert played.said() == [], "the terminal has come: there is nothing left to cancel"
            assert not exchange.is_open
            assert played.is_well()


@pytest.mark.parametrize(("kind", "name"), meta_rows(Kind.LOG, Kind.CANCEL, Kind.END))
def test_a_wrong_field_in_a_frame_of_a_request_is_damage_to_that_request_alone(play: Any, kind: int, name: str) -> None:
    for meta in wrong_metas(kind, name):
        played = play()
        exchange = played.opened(asks=kind == Kind.LOG)
        [event] = played.hear({1: kind, 2: exchange.id, 5: meta})
        assert isinstance(event, wire.ExchangeDamaged), meta
        assert event.error.code is Code.PROTOCOL_VIOLATION
        assert name in event.error.message
        assert [one[1] for one in played.said()] == [Kind.CANCEL if kind == Kind.LOG else Kind.ERR]
        assert played.is_well()


def test_the_table_is_whole() -> None:
    assert set(KEYS) == set(Kind)
    assert set(TYPES) == set(Key)
    for required, allowed in KEYS.values():
        assert required[:2] == (Key.KIND, Key.ID)
        assert not set(required) & set(allowed)
    assert {kind for kind, keys in KEYS.items() if Key.META in keys[0] + keys[1]} == set(META)
    assert all(types is UINT or types != (int,) for fields in META.values() for types, _ in fields.values())
