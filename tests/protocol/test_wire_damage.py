"""What is wrong inside one request ends that request: the finder answers, and the others go on."""

from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure

Kind = wire.Kind
START, LOG = {1: 8, 11: 0}, {1: 5, 5: {"level": "info", "message": "m"}}
OVER = {"class": "internal", "code": "INTERNAL", "message": "m"}


def chunk(index: int, stream: int = 0, payload: bytes = b"x") -> dict[int, Any]:
    return {1: 3, 11: stream, 14: index, 6: payload}


def end_of(count: int, stream: int = 0) -> dict[int, Any]:
    return {1: 9, 11: stream, 15: count}


def credit(number: int, amount: int) -> dict[int, Any]:
    return {1: 13, 11: number, 19: amount}


# (what, frames before it that are right, the frame that is wrong, code). The real end allows 2 chunks on the way,
# 1 KiB in a chunk, and 3 streams in a request; it has one open stream of its own, number 0.
BOTH_WAYS: list[tuple[str, list[dict[int, Any]], dict[int, Any], Code]] = [
    ("a chunk of a stream that was never opened", [START], chunk(0, stream=1), Code.PROTOCOL_VIOLATION),
    ("a chunk without any stream", [], chunk(0), Code.PROTOCOL_VIOLATION),
    ("a stream that skips a number", [], {1: 8, 11: 1}, Code.PROTOCOL_VIOLATION),
    ("a second start of a stream", [START], START, Code.PROTOCOL_VIOLATION),
    ("a second start of a stream that has ended", [START, end_of(0)], START, Code.PROTOCOL_VIOLATION),
    ("a first chunk that is not number 0", [START], chunk(1), Code.PROTOCOL_VIOLATION),
    ("a chunk left out", [START, chunk(0)], chunk(2), Code.PROTOCOL_VIOLATION),
    ("a chunk sent again", [START, chunk(0)], chunk(0), Code.PROTOCOL_VIOLATION),
    ("a count that is too low", [START, chunk(0)], end_of(0), Code.PROTOCOL_VIOLATION),
    ("a count that is too high", [START, chunk(0)], end_of(2), Code.PROTOCOL_VIOLATION),
    ("the end of a stream that was never opened", [START], end_of(0, stream=1), Code.PROTOCOL_VIOLATION),
    ("a second end of a stream", [START, end_of(0)], end_of(0), Code.PROTOCOL_VIOLATION),
    ("a chunk behind the end of its stream", [START, end_of(0)], chunk(0), Code.PROTOCOL_VIOLATION),
    ("a chunk of a whole stream", [{**START, 6: b"all"}], chunk(0), Code.PROTOCOL_VIOLATION),
    ("the end of a whole stream", [{**START, 6: b"all"}], end_of(0), Code.PROTOCOL_VIOLATION),
    ("a chunk beyond the window", [START, chunk(0), chunk(1)], chunk(2), Code.CREDIT_VIOLATION),
    ("a chunk larger than agreed", [START], chunk(0, payload=bytes(1025)), Code.FRAME_TOO_LARGE),
    ("a whole stream larger than a chunk", [], {**START, 6: bytes(1025)}, Code.FRAME_TOO_LARGE),
    ("a name and media too long together", [], {**START, 12: "m" * 500, 21: "n" * 461}, Code.FRAME_TOO_LARGE),
    ("more streams than allowed", [{1: 8, 11: n} for n in range(3)], {1: 8, 11: 3}, Code.PROTOCOL_VIOLATION),
    ("a credit of nothing", [], credit(0, 0), Code.CREDIT_VIOLATION),
    ("a credit past all bounds", [], credit(0, 1 << 40), Code.CREDIT_VIOLATION),
    ("credits that add up past all bounds", [credit(0, 1 << 30)], credit(0, 1 << 30), Code.CREDIT_VIOLATION),
    ("a credit for a stream that was never opened", [], credit(1, 1), Code.PROTOCOL_VIOLATION),
]
FROM_REQUESTER: list[tuple[str, list[dict[int, Any]], dict[int, Any], Code]] = [
    ("END with a stream of its own still open", [START], {1: 4}, Code.PROTOCOL_VIOLATION),
    ("a second END", [{1: 4}], {1: 4}, Code.PROTOCOL_VIOLATION),
    ("a stream behind END", [START, end_of(0), {1: 4}], {1: 8, 11: 1}, Code.PROTOCOL_VIOLATION),
    ("a chunk behind END", [START, end_of(0), {1: 4}], chunk(0), Code.PROTOCOL_VIOLATION),
    ("LOG from the requester", [], LOG, Code.PROTOCOL_VIOLATION),
    ("ERR from the requester", [], {1: 6, 5: OVER}, Code.PROTOCOL_VIOLATION),
]
FROM_RESPONDER: list[tuple[str, list[dict[int, Any]], dict[int, Any], Code]] = [
    ("CANCEL from the responder", [], {1: 12, 5: {"reason": "no"}}, Code.PROTOCOL_VIOLATION),
]


def named(*groups: list[Any]) -> list[Any]:
    return [pytest.param(*case[1:], id=case[0].replace(" ", "-")) for group in groups for case in group]


def start(play: Any, role: wire.Role, *, asks: bool) -> tuple[Any, wire.Exchange, wire.OutStream]:
    """An open request with one open stream of the real end, which has sent one chunk on it."""
    played = play(role, max_chunk=1024, initial_credit=2, streams_per_request=3)
    exchange = played.opened(asks=asks)
    own = played.end.open_stream(exchange)
    own.write(b"own")
    played.said()
    return played, exchange, own


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize(("right", "wrong", "code"), named(BOTH_WAYS, FROM_REQUESTER))
def test_a_responder_answers_damage_with_an_error_and_is_done(
    play: Any, role: wire.Role, right: list[Any], wrong: dict[int, Any], code: Code
) -> None:
    played, exchange, own = start(play, role, asks=False)
    other = played.opened(asks=False)
    found = played.hear(*({2: exchange.id, **one} for one in right), {2: exchange.id, **wrong})
    damaged = found.pop()
    assert not [event for event in found if isinstance(event, wire.ExchangeDamaged)], "what was right is kept"
    assert isinstance(damaged, wire.ExchangeDamaged)
    assert damaged.exchange is exchange
    assert damaged.error.code is code
    [answer] = played.said()
    assert (answer[1], answer[2], answer[5]["code"]) == (Kind.ERR, exchange.id, code.name)
    assert not exchange.is_open
    assert own.error is damaged.error, "whoever writes its output is woken with the same error"
    assert played.hear({2: exchange.id, **START}, {1: 12, 2: exchange.id}) == []
    assert played.end.stragglers == 1
    [event, *_] = played.hear({2: other.id, **START}, {2: other.id, **chunk(0)})
    assert event.exchange is other
    assert played.is_well()


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize(("right", "wrong", "code"), named(BOTH_WAYS, FROM_RESPONDER))
def test_a_requester_answers_damage_with_cancel_and_passes_over_all_but_the_terminal(
    play: Any, role: wire.Role, right: list[Any], wrong: dict[int, Any], code: Code
) -> None:
    played, exchange, own = start(play, role, asks=True)
    other = played.opened(asks=True)
    found = played.hear(*({2: exchange.id, **one} for one in right), {2: exchange.id, **wrong})
    damaged = found.pop()
    assert not [event for event in found if isinstance(event, wire.ExchangeDamaged)]
    assert isinstance(damaged, wire.ExchangeDamaged)
    assert damaged.error.code is code
    [answer] = played.said()
    assert (answer[1], answer[2]) == (Kind.CANCEL, exchange.id)
    assert code.name in answer[5]["reason"]
    assert own.error is not None
    assert exchange.is_open, "the terminal is still to come"
    late = [START, chunk(0), chunk(7), end_of(9), credit(0, 1), LOG, wrong]
    assert played.hear(*({2: exchange.id, **one} for one in late)) == []
    assert (played.end.stragglers, played.end.strays, played.said()) == (0, 0, [])
    [event, *_] = played.hear({2: other.id, **START}, {2: other.id, **chunk(0)})
    assert event.exchange is other
    [failed] = played.hear({1: 6, 2: exchange.id, 5: {**OVER, "code": "CANCELLED"}})
    assert isinstance(failed, wire.Failed)
    assert not exchange.is_open
    assert played.is_well()


@pytest.mark.parametrize("role", wire.Role)
def test_a_terminal_that_leaves_a_stream_open_is_a_failure(play: Any, role: wire.Role) -> None:
    played, exchange, own = start(play, role, asks=True)
    *_, failed = played.hear({2: exchange.id, **START}, {1: 4, 2: exchange.id})
    assert isinstance(failed, wire.Failed)
    assert failed.error.code is Code.PROTOCOL_VIOLATION
    assert not exchange.is_open
    assert own.error is failed.error
    assert played.said() == []
    assert played.is_well()


@pytest.mark.parametrize("role", wire.Role)
def test_a_terminal_with_a_stream_open_is_right_after_a_cancel(play: Any, role: wire.Role) -> None:
    played, exchange, _ = start(play, role, asks=True)
    played.hear({2: exchange.id, **START})
    played.end.cancel(exchange)
    [event] = played.hear({1: 4, 2: exchange.id, 5: {"progress": 0.5}})
    assert isinstance(event, wire.Finished)
    assert event.progress == 0.5


@pytest.mark.parametrize("role", wire.Role)
def test_arguments_that_follow_a_complete_request_are_damage(play: Any, role: wire.Role) -> None:
    for wrong in (START, {1: 4}):
        played = play(role)
        exchange = played.opened(asks=False, complete=True)
        [event] = played.hear({2: exchange.id, **wrong})
        assert isinstance(event, wire.ExchangeDamaged)
        assert [one[5]["code"] for one in played.said()] == ["PROTOCOL_VIOLATION"]


@pytest.mark.parametrize("role", wire.Role)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"a": bytes(60), "b": bytes(41)}, "FRAME_TOO_LARGE"),
        ({"a": "text"}, "PROTOCOL_VIOLATION"),
        ({"a": b"", "b": None}, "PROTOCOL_VIOLATION"),
    ],
)
def test_inline_arguments_are_bytes_and_few(play: Any, role: wire.Role, arguments: Any, code: str) -> None:
    played = play(role, inline_arguments=100)
    request_id = played.their_id()
    assert played.hear({1: 1, 2: request_id, 10: "cap:x", 5: {"arguments": arguments}}) == []
    [answer] = played.said()
    assert (answer[1], answer[2], answer[5]["code"]) == (Kind.ERR, request_id, code)
    assert played.is_well()
    [event] = played.hear({1: 1, 2: played.their_id(), 10: "cap:x", 5: {"arguments": {"a": bytes(100)}}})
    assert event.arguments == {"a": bytes(100)}


@pytest.mark.parametrize("role", wire.Role)
def test_one_request_too_many_is_told_that_the_queue_is_full(play: Any, role: wire.Role) -> None:
    played = play(role, open_requests=3)
    for _ in range(5):
        played.opened(asks=True)
    first, *_ = [played.opened(asks=False) for _ in range(3)]
    assert played.hear({1: 1, 2: played.their_id(), 10: "cap:x"}) == []
    [answer] = played.said()
    assert (answer[1], answer[5]["code"], answer[5]["class"]) == (Kind.ERR, "QUEUE_FULL", "resource")
    played.end.end(first)
    assert played.opened(asks=False).is_open, "there is room again"


def test_an_item_cut_off_is_answered_like_other_damage(play: Any) -> None:
    for asks, answer in ((True, Kind.CANCEL), (False, Kind.ERR)):
        played = play()
        exchange = played.opened(asks=asks)
        played.end.damage(exchange, failure(Code.PROTOCOL_VIOLATION, "a sequence ended inside an item"))
        assert [one[1] for one in played.said()] == [answer]
        assert played.is_well()
