"""The laws of the connection itself: who speaks first, whose ids are which, what may carry id 0."""

from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure

Kind, Role = wire.Kind, wire.Role
HELLO = {"protocol": 1, "api": 1, "limits": {}, "features": []}
LINE = {"level": "info", "message": "m"}


def ended(events: list[Any], key: str | None = None) -> bool:
    return (
        isinstance(events[-1], wire.ConnectionDamaged)
        and events[-1].error.code is Code.PROTOCOL_VIOLATION
        and (key is None or events[-1].error.key == key)
    )


@pytest.mark.parametrize(
    "first",
    [
        {1: 1, 2: 2, 10: "cap:x"},
        {1: 7, 2: 0},
        {1: 5, 2: 0, 5: LINE},
        {1: 3, 2: 2, 11: 0, 14: 0, 6: b"x"},
        {1: 4, 2: 2},
        {1: 0, 2: 2, 5: HELLO},
    ],
    ids=lambda first: Kind(first[1]).name,
)
@pytest.mark.parametrize("role", Role)
def test_nothing_comes_before_hello(play: Any, role: Role, first: dict[int, Any]) -> None:
    played = play(role, greet=False)
    assert ended(played.hear(first))
    assert not played.end.is_greeted


@pytest.mark.parametrize("role", Role)
def test_a_second_hello_ends_the_connection(play: Any, role: Role) -> None:
    played = play(role)
    assert ended(played.hear({1: 0, 2: 0, 5: HELLO}), "kind")
    assert ended(play(role).hear({1: 0, 2: 2, 5: HELLO}), "id")


@pytest.mark.parametrize(("role", "wrong"), [(Role.HOST, 2), (Role.HOST, 0), (Role.CARTRIDGE, 1), (Role.CARTRIDGE, 0)])
def test_a_request_with_an_id_of_the_wrong_parity_ends_the_connection(play: Any, role: Role, wrong: int) -> None:
    assert ended(play(role).hear({1: 1, 2: wrong, 10: "cap:x"}), "id")


@pytest.mark.parametrize("role", Role)
def test_ids_only_grow_for_the_life_of_the_connection(play: Any, role: Role) -> None:
    base = 1 if role is Role.HOST else 2
    for again in (base + 10, base + 8, base):
        played = play(role)
        [event] = played.hear({1: 1, 2: base + 10, 10: "cap:x"})
        assert event.exchange.id == base + 10, "ids may leave gaps"
        played.end.end(event.exchange)
        assert ended(played.hear({1: 1, 2: again, 10: "cap:x"}), "id"), "also when the earlier request is over"


@pytest.mark.parametrize("role", Role)
def test_a_refused_request_has_used_its_id(play: Any, role: Role) -> None:
    played = play(role, inline_arguments=0)
    request_id = played.their_id()
    played.hear({1: 1, 2: request_id, 10: "cap:x", 5: {"arguments": {"a": b"1"}}})
    assert ended(played.hear({1: 1, 2: request_id, 10: "cap:x"}), "id")


def test_the_host_counts_from_two_and_the_cartridge_from_one(play: Any) -> None:
    assert [play(Role.HOST).opened(asks=True).id, play(Role.CARTRIDGE).opened(asks=True).id] == [2, 1]
    played = play(Role.CARTRIDGE)
    assert [played.opened(asks=True).id for _ in range(3)] == [1, 3, 5]


def test_a_heartbeat_comes_from_the_cartridge_and_about_no_request(play: Any) -> None:
    [beat] = play(Role.HOST).hear({1: 7, 2: 0, 5: {"rss_bytes": 5, "open_requests": 1, "stragglers": 2, "strays": 3}})
    assert (beat.rss_bytes, beat.open_requests, beat.stragglers, beat.strays) == (5, 1, 2, 3)
    [bare] = play(Role.HOST).hear({1: 7, 2: 0})
    assert (bare.rss_bytes, bare.open_requests, bare.stragglers, bare.strays) == (None, None, 0, 0)
    assert ended(play(Role.CARTRIDGE).hear({1: 7, 2: 0}), "id")
    for role in Role:
        assert ended(play(role).hear({1: 7, 2: 2}), "id")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    "frame",
    [
        {1: 3, 11: 0, 14: 0, 6: b"x"},
        {1: 4},
        {1: 8, 11: 0},
        {1: 9, 11: 0, 15: 0},
        {1: 12},
        {1: 13, 11: 0, 19: 1},
    ],
    ids=lambda frame: Kind(frame[1]).name,
)
def test_only_frames_about_the_connection_carry_id_zero(play: Any, role: Role, frame: dict[int, Any]) -> None:
    assert ended(play(role).hear({2: 0, **frame}), "id")


@pytest.mark.parametrize("role", Role)
def test_a_chunk_with_id_zero_is_refused_in_our_own_encoding_too(play: Any, role: Role) -> None:
    body = bytes.fromhex("850103 02ce00000000 0bcd0000 0ece00000000 06c600000001 78")
    assert ended(play(role).hear(len(body).to_bytes(4, "big") + body), "id")


@pytest.mark.parametrize("role", Role)
def test_lines_and_errors_about_the_connection_come_from_both_ends(play: Any, role: Role) -> None:
    played = play(role)
    error = failure(Code.VERSION_MISMATCH, "versions")
    line, refused = played.hear({1: 5, 2: 0, 5: LINE}, {1: 6, 2: 0, 5: error.to_wire()})
    assert isinstance(line, wire.ConnectionLogged)
    assert isinstance(refused, wire.ConnectionRefused)
    assert refused.error.code is Code.VERSION_MISMATCH
    played.end.log(None, "info", "m")
    played.end.refuse(error)
    assert [(one[1], one[2]) for one in played.said()] == [(Kind.LOG, 0), (Kind.ERR, 0)]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", ["protocol", "api"])
def test_another_version_ends_the_connection_and_both_are_named(play: Any, role: Role, name: str) -> None:
    played = play(role, greet=False)
    [event] = played.hear({1: 0, 2: 0, 5: {**HELLO, name: 7, "software": "their thing 3"}})
    error = event.error
    assert error.code is Code.VERSION_MISMATCH
    assert error.key == name
    for part in ("their thing 3", f"{name} version 1", "version 7"):
        assert part in error.message
    assert [one[1] for one in played.said()] == [Kind.HELLO], "ours leaves all the same, so that they can say it too"


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"max_chunk": 1023}, "max_chunk"),
        ({"max_chunk": (8 << 20) + 1}, "max_chunk"),
        ({"max_chunk": "many"}, "max_chunk"),
        ({"initial_credit": 0}, "initial_credit"),
        ({"initial_credit": 65_537}, "initial_credit"),
        ({"initial_credit": True}, "initial_credit"),
        ({"max_item": 1.5}, "max_item"),
        ({"inline_arguments": -1}, "inline_arguments"),
        ({"open_requests": None}, "open_requests"),
        ({"streams_per_request": 0}, "streams_per_request"),
    ],
)
def test_a_limit_out_of_bounds_ends_the_connection(play: Any, limits: dict[str, Any], name: str) -> None:
    [event] = play(greet=False).hear({1: 0, 2: 0, 5: {**HELLO, "limits": limits}})
    assert event.error.code is Code.PROTOCOL_VIOLATION
    assert event.error.key == "limits"
    assert name in event.error.message


def test_limits_that_hello_leaves_out_have_their_defaults(play: Any) -> None:
    played = play(greet=False)
    [event] = played.hear({1: 0, 2: 0, 5: {**HELLO, "limits": {"max_chunk": 2048, "colour": "blue"}}})
    assert event.limits == wire.Limits(max_chunk=2048)
    assert played.end.max_chunk == 2048


@pytest.mark.parametrize("features", [[1], ["a", None], [["a"]]])
def test_features_are_names(play: Any, features: list[Any]) -> None:
    assert ended(play(greet=False).hear({1: 0, 2: 0, 5: {**HELLO, "features": features}}), "features")


def test_each_end_states_what_it_accepts_and_the_other_keeps_to_it(play: Any) -> None:
    """initial_credit and the number of streams are the receiver's own; max_chunk alone is agreed on."""
    played = play(greet=False, initial_credit=8, streams_per_request=9)
    stated = {"initial_credit": 1, "streams_per_request": 2, "max_chunk": 1024}
    played.hear({1: 0, 2: 0, 5: {**HELLO, "limits": stated}})
    [hello] = played.said()
    assert hello[5]["limits"]["initial_credit"] == 8
    exchange = played.opened(asks=True)
    stream = played.end.open_stream(exchange)
    stream.write(bytes(3000))
    assert [one[1] for one in played.said()] == [Kind.STREAM_START, Kind.CHUNK], "one chunk, as they stated"
    played.end.open_stream(exchange)
    with pytest.raises(Exception, match="at most 2 streams"):
        played.end.open_stream(exchange)
    found = played.hear(
        {1: 8, 2: exchange.id, 11: 0}, *({1: 3, 2: exchange.id, 11: 0, 14: n, 6: b""} for n in range(8))
    )
    assert len(found) == 9, "eight chunks, as we stated"
    [event] = played.hear({1: 3, 2: exchange.id, 11: 0, 14: 8, 6: b""})
    assert event.error.code is Code.CREDIT_VIOLATION


def test_a_peer_call_names_the_request_that_it_is_made_for(play: Any) -> None:
    played = play(Role.HOST)
    own = played.opened(asks=True)
    [event] = played.hear({1: 1, 2: 1, 10: "cap:peer", 5: {"parent": own.id, "complete": True}})
    assert (event.parent, event.complete) == (own.id, True)
    cartridge = play(Role.CARTRIDGE)
    cartridge.end.request("cap:peer", parent=cartridge.opened(asks=False))
    [request] = cartridge.said()
    assert request[5]["parent"] == 2


def test_a_finished_connection_takes_no_more_bytes(play: Any, frame: Any) -> None:
    played = play()
    assert ended(played.hear({1: 2, 2: 0}))
    assert played.hear({1: 7, 2: 0}) == []
    with pytest.raises(wire.LocalProtocolError):
        played.end.received(0)


def test_a_second_hello_of_ones_own_is_a_bug_of_the_caller(play: Any) -> None:
    with pytest.raises(wire.LocalProtocolError):
        play().end.send_hello()
