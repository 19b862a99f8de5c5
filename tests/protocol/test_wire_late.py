"""Frames for what is over or never was (law 3): late is normal, stragglers and strays are counted."""

from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure

Kind = wire.Kind
OVER = {"class": "internal", "code": "INTERNAL", "message": "m"}
REST: list[dict[int, Any]] = [
    {1: 8, 11: 0},
    {1: 3, 11: 0, 14: 0, 6: b"x"},
    {1: 9, 11: 0, 15: 1},
    {1: 5, 5: {"level": "info", "message": "m"}},
    {1: 4},
    {1: 6, 5: OVER},
]
LATE: list[dict[int, Any]] = [{1: 13, 11: 0, 19: 4}, {1: 12}]


def closed(play: Any, role: wire.Role, *, asks: bool) -> tuple[Any, int]:
    played = play(role)
    exchange = played.opened(asks=asks)
    if asks:
        played.hear({1: 4, 2: exchange.id})
    else:
        played.end.end(exchange)
        played.said()
    assert not exchange.is_open
    return played, exchange.id


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("frame", REST, ids=lambda frame: Kind(frame[1]).name)
def test_a_frame_for_a_request_that_is_over_is_a_straggler(
    play: Any, role: wire.Role, asks: bool, frame: dict[int, Any]
) -> None:
    played, request_id = closed(play, role, asks=asks)
    assert played.hear({2: request_id, **frame}) == []
    assert (played.end.stragglers, played.end.strays, played.said()) == (1, 0, [])
    assert played.is_well()


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("frame", LATE, ids=lambda frame: Kind(frame[1]).name)
def test_credit_and_cancel_for_a_request_that_is_over_are_late_and_not_counted(
    play: Any, role: wire.Role, asks: bool, frame: dict[int, Any]
) -> None:
    played, request_id = closed(play, role, asks=asks)
    assert played.hear({2: request_id, **frame}) == []
    assert (played.end.stragglers, played.end.strays, played.said()) == (0, 0, [])


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize("frame", REST + LATE, ids=lambda frame: Kind(frame[1]).name)
@pytest.mark.parametrize("request_id", [50, 51, 1 << 40, (1 << 40) + 1])
def test_a_frame_for_a_request_that_never_was_is_a_stray_and_reported(
    play: Any, role: wire.Role, frame: dict[int, Any], request_id: int
) -> None:
    played = play(role)
    [event] = played.hear({2: request_id, **frame})
    assert isinstance(event, wire.StrayReceived)
    assert (event.kind, event.request_id) == (frame[1], request_id)
    assert (played.end.stragglers, played.end.strays) == (0, 1)
    assert played.is_well()


def test_every_frame_that_is_passed_over_is_counted(play: Any) -> None:
    played, request_id = closed(play, wire.Role.HOST, asks=True)
    played.hear(*({2: request_id, **one} for one in REST * 3), *({2: 77, **one} for one in REST * 2))
    assert (played.end.stragglers, played.end.strays) == (18, 12)


def test_a_request_refused_has_stragglers_and_no_strays(play: Any) -> None:
    played = play(wire.Role.CARTRIDGE, inline_arguments=0)
    request_id = played.their_id()
    refused = {1: 1, 2: request_id, 10: "cap:x", 5: {"arguments": {"a": b"too large"}}}
    assert played.hear(refused, *({2: request_id, **one} for one in REST[:3])) == []
    assert (played.end.stragglers, played.end.strays) == (3, 0)


def test_credit_for_a_stream_that_has_ended_is_late(play: Any) -> None:
    for asks in (True, False):
        played = play()
        exchange = played.opened(asks=asks)
        stream = played.end.open_stream(exchange)
        stream.write(b"all")
        stream.close()
        played.said()
        assert played.hear({1: 13, 2: exchange.id, 11: stream.number, 19: 4}) == []
        assert exchange.is_open
        assert played.end.stragglers == 0


def test_what_follows_a_cancel_is_passed_over_by_the_responder(play: Any) -> None:
    played = play(wire.Role.CARTRIDGE)
    exchange = played.opened(asks=False)
    [event] = played.hear({1: 12, 2: exchange.id, 5: {"reason": "enough"}})
    assert isinstance(event, wire.CancelReceived)
    assert played.hear(*({2: exchange.id, **one} for one in [*REST, *LATE])) == []
    assert (played.end.stragglers, played.end.strays, played.said()) == (0, 0, [])
    assert exchange.is_open, "the requester still waits for the terminal"
    played.end.fail(exchange, failure(Code.CANCELLED, "stopped"))
    assert [one[1] for one in played.said()] == [Kind.ERR]


def test_a_requester_that_had_not_finished_sends_nothing_after_the_terminal(play: Any) -> None:
    played = play(initial_credit=1)
    exchange = played.opened(asks=True)
    stream = played.end.open_stream(exchange, name="data")
    stream.write(b"1")
    played.said()
    stream.write(b"2")
    played.hear({1: 4, 2: exchange.id}, {1: 13, 2: exchange.id, 11: 0, 19: 5})
    played.end.end(exchange)
    played.end.cancel(exchange)
    assert played.said() == []
    with pytest.raises(type(failure(Code.CANCELLED, ""))) as caught:
        stream.write(b"3")
    assert caught.value.code is Code.CANCELLED


def test_nothing_follows_a_cancel_of_ones_own(play: Any) -> None:
    played = play()
    exchange = played.opened(asks=True)
    stream = played.end.open_stream(exchange, name="data")
    stream.write(b"1")
    played.hear({1: 8, 2: exchange.id, 11: 0}, {1: 3, 2: exchange.id, 11: 0, 14: 0, 6: b"x"})
    started = played.end.exchanges[exchange.id].in_streams[0]
    played.end.cancel(exchange, "enough")
    started.take()
    started.settle()
    played.end.end(exchange)
    played.end.cancel(exchange, "again")
    played.end.open_stream(exchange, name="more").close()
    assert [one[1] for one in played.said()] == [Kind.CANCEL], "not even what was still waiting to leave"


def test_a_cancel_that_meets_work_that_is_done_gets_its_end(play: Any) -> None:
    played = play(wire.Role.CARTRIDGE, initial_credit=1, max_chunk=1024)
    exchange = played.opened(asks=False, complete=True)
    played.end.open_stream(exchange).write(bytes(5000))
    played.end.end(exchange, provenance={"seed": 1})
    assert [one[1] for one in played.said()] == [Kind.STREAM_START, Kind.CHUNK]
    played.hear({1: 12, 2: exchange.id})
    [end] = played.said()
    assert (end[1], end[5]["provenance"]) == (Kind.END, {"seed": 1})
    assert not exchange.is_open
