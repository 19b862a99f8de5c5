"""What leaves, when, and in which order: control first, streams by turns, the terminal last."""

from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure

Kind = wire.Kind
KIB = 1024


def answering(play: Any, **limits: int) -> tuple[Any, wire.Exchange]:
    played = play(wire.Role.CARTRIDGE, **limits)
    return played, played.opened(asks=False, complete=True)


def kinds(frames: list[dict[int, Any]]) -> list[int]:
    return [frame[1] for frame in frames]


def test_a_stream_closed_before_it_left_is_one_frame(play: Any) -> None:
    played, exchange = answering(play, max_chunk=KIB)
    for size in (0, 1, KIB, KIB + 1):
        stream = played.end.open_stream(exchange)
        for _ in range(size):
            stream.write(b"x")
        stream.close()
        said = played.said()
        if size <= KIB:
            assert kinds(said) == [Kind.STREAM_START]
            assert said[0][6] == b"x" * size
        else:
            assert kinds(said) == [Kind.STREAM_START, Kind.CHUNK, Kind.CHUNK, Kind.STREAM_END]
        assert stream.closed


def test_a_stream_says_what_it_is(play: Any) -> None:
    played, exchange = answering(play)
    played.end.open_stream(exchange, name="events", media="media:fmt=json", is_sequence=True)
    played.end.open_stream(exchange)
    assert played.said() == [
        {1: 8, 2: exchange.id, 11: 0, 12: "media:fmt=json", 17: True, 21: "events"},
        {1: 8, 2: exchange.id, 11: 1},
    ]


def test_small_writes_leave_together_and_large_ones_are_cut(play: Any) -> None:
    played, exchange = answering(play, max_chunk=2 * KIB)
    stream = played.end.open_stream(exchange)
    data = bytes(range(250)) * 40
    for at in range(0, 5000, 7):
        stream.write(data[at : min(at + 7, 5000)])
    stream.write(data[5000:])
    chunks = [frame[6] for frame in played.said() if frame[1] == Kind.CHUNK]
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= 2 * KIB
    assert len(chunks) <= 6


@pytest.mark.parametrize("room", [1, KIB - 1, KIB, KIB + 1, 5 * KIB])
def test_chunks_stop_at_the_room_there_is(play: Any, room: int) -> None:
    played, exchange = answering(play, max_chunk=KIB, initial_credit=64)
    stream = played.end.open_stream(exchange)
    stream.write(bytes(20 * KIB))
    sizes = []
    while played.end.has_outgoing:
        frames = played.end.outgoing(room)
        sizes.append(sum(map(len, frames)))
    assert stream.pending_bytes == 0
    assert max(sizes) <= room + KIB + 80, "the last chunk may be longer than the room"
    assert len(sizes) >= 20 * KIB // (room + KIB)


def test_without_room_only_control_leaves(play: Any) -> None:
    played, exchange = answering(play)
    stream = played.end.open_stream(exchange)
    stream.write(b"waits")
    played.end.log(exchange, "info", "at once")
    assert [one[1] for one in _frames(played, 0)] == [Kind.LOG]
    assert played.end.has_outgoing
    assert [one[1] for one in _frames(played, 1)] == [Kind.STREAM_START, Kind.CHUNK]
    assert not played.end.has_outgoing


def _frames(played: Any, room: int) -> list[dict[int, Any]]:
    outgoing, played.end.outgoing = played.end.outgoing, lambda: outgoing(room)
    try:
        return played.said()
    finally:
        del played.end.outgoing


def test_control_overtakes_chunks_that_wait_and_the_terminal_comes_last(play: Any) -> None:
    played, exchange = answering(play, max_chunk=KIB, initial_credit=64)
    first, second = played.end.open_stream(exchange), played.end.open_stream(exchange, name="more")
    first.write(bytes(3 * KIB))
    second.write(bytes(3 * KIB))
    played.end.log(exchange, "info", "m")
    played.end.end(exchange)
    said = played.said()
    assert said[0][1] == Kind.LOG
    assert kinds(said).count(Kind.END) == 1
    assert said[-1][1] == Kind.END
    assert kinds(said).count(Kind.STREAM_END) == 2
    played.end.log(exchange, "info", "too late")
    assert played.said() == []


def test_an_end_waits_for_credit_and_a_log_does_not(play: Any) -> None:
    played, exchange = answering(play, max_chunk=KIB, initial_credit=1)
    stream = played.end.open_stream(exchange)
    stream.write(bytes(2 * KIB))
    played.end.log(exchange, "info", "before")
    played.end.end(exchange)
    assert kinds(played.said()) == [Kind.LOG, Kind.STREAM_START, Kind.CHUNK]
    assert exchange.is_open
    played.hear({1: 13, 2: exchange.id, 11: 0, 19: 1})
    assert kinds(played.said()) == [Kind.CHUNK, Kind.STREAM_END, Kind.END]
    assert not exchange.is_open


def test_an_error_does_not_wait_for_what_is_pending(play: Any) -> None:
    played, exchange = answering(play, initial_credit=1)
    stream = played.end.open_stream(exchange)
    stream.write(b"x")
    played.end.fail(exchange, failure(Code.OUT_OF_MEMORY, "no room"))
    played.end.fail(exchange, failure(Code.INTERNAL, "again"))
    played.end.end(exchange)
    [answer] = played.said()
    assert (answer[1], answer[5]["code"]) == (Kind.ERR, "OUT_OF_MEMORY")


def test_streams_of_all_requests_take_turns_a_chunk_each(play: Any) -> None:
    played = play(wire.Role.CARTRIDGE, max_chunk=KIB, initial_credit=64)
    streams = []
    for size in (30, 3, 3):
        exchange = played.opened(asks=False, complete=True)
        for _ in range(2):
            stream = played.end.open_stream(exchange)
            stream.write(bytes(size * KIB))
            streams.append((exchange.id, stream.number))
    order = [(one[2], one[11]) for one in played.said() if one[1] == Kind.CHUNK]
    assert order[:18] == streams * 3, "a long stream holds nobody back"
    assert len(order) == 2 * 36


def test_a_slow_reader_of_one_stream_holds_no_other(play: Any) -> None:
    played, exchange = answering(play, max_chunk=KIB, initial_credit=2)
    slow, quick = played.end.open_stream(exchange), played.end.open_stream(exchange, name="quick")
    slow.write(bytes(9 * KIB))
    quick.write(bytes(9 * KIB))
    played.said()
    for _ in range(7):
        played.hear({1: 13, 2: exchange.id, 11: 1, 19: 1})
        assert [one[11] for one in played.said()] == [1]
    assert (slow.pending_bytes, quick.pending_bytes) == (7 * KIB, 0)


def test_a_callback_that_opens_a_request_has_it_leave_before_its_stream(play: Any) -> None:
    played = play()
    first = played.opened(asks=True)
    stream = played.end.open_stream(first, name="data")

    def go_on() -> None:
        stream.on_writable = None
        second = played.end.request("cap:y", complete=False)
        played.end.open_stream(second, name="data").write(b"2")

    stream.on_writable = go_on
    stream.write(b"1")
    assert [(one[1], one[2]) for one in played.said()] == [
        (Kind.STREAM_START, 2), (Kind.CHUNK, 2), (Kind.REQ, 4), (Kind.STREAM_START, 4), (Kind.CHUNK, 4),
    ]  # fmt: skip  # one line


def test_a_writer_is_woken_when_all_has_left_and_when_the_stream_dies(play: Any) -> None:
    played, exchange = answering(play, max_chunk=KIB, initial_credit=1)
    woken: list[int] = []
    stream = played.end.open_stream(exchange)
    stream.on_writable = lambda: woken.append(stream.pending_bytes)
    stream.write(bytes(2 * KIB))
    played.said()
    assert woken == []
    played.hear({1: 13, 2: exchange.id, 11: 0, 19: 1})
    played.said()
    assert woken == [0]
    stream.write(b"x")
    played.hear({1: 12, 2: exchange.id})
    assert woken == [0, 0]
    assert stream.error is not None
    assert stream.pending_bytes == 0


def test_credit_goes_back_in_batches_of_half_a_window_and_what_is_owed_when_asked(play: Any) -> None:
    played = play(initial_credit=8)
    exchange = played.opened(asks=True)
    [started, *_] = played.hear(
        {1: 8, 2: exchange.id, 11: 0}, *({1: 3, 2: exchange.id, 11: 0, 14: n, 6: b"x"} for n in range(8))
    )
    stream = started.stream
    for _ in range(3):
        stream.take()
    assert played.said() == []
    stream.take()
    assert played.said() == [{1: 13, 2: exchange.id, 11: 0, 19: 4}]
    stream.take()
    stream.settle()
    stream.settle()
    assert played.said() == [{1: 13, 2: exchange.id, 11: 0, 19: 1}]
    played.hear({1: 9, 2: exchange.id, 11: 0, 15: 8})
    stream.take(3)
    stream.settle()
    assert played.said() == [], "a stream that has ended needs no credit"


@pytest.mark.parametrize(
    "misuse",
    [
        lambda end, own, theirs: end.log(own, "info", "m"),
        lambda end, own, theirs: end.fail(own, failure(Code.INTERNAL, "m")),
        lambda end, own, theirs: end.cancel(theirs),
        lambda end, own, theirs: end.open_stream(own),
    ],
    ids=[
        "LOG-from-the-requester",
        "ERR-from-the-requester",
        "CANCEL-from-the-responder",
        "a-stream-of-a-complete-request",
    ],
)
@pytest.mark.parametrize("role", wire.Role)
def test_a_command_that_would_break_a_law_is_refused_to_the_one_who_gives_it(
    play: Any, role: wire.Role, misuse: Any
) -> None:
    played = play(role)
    own, theirs = played.opened(asks=True, complete=True), played.opened(asks=False)
    with pytest.raises(wire.LocalProtocolError):
        misuse(played.end, own, theirs)
    assert played.said() == []
    assert played.is_well()


def test_no_stream_opens_behind_an_end_and_no_write_follows_a_close(play: Any) -> None:
    played, exchange = answering(play, initial_credit=1, max_chunk=KIB)
    stream = played.end.open_stream(exchange)
    stream.write(bytes(5 * KIB))
    played.end.end(exchange)
    with pytest.raises(wire.LocalProtocolError):
        played.end.open_stream(exchange, name="late")
    with pytest.raises(wire.LocalProtocolError):
        stream.write(b"late")


def test_a_stream_of_a_request_that_is_over_tells_its_writer(play: Any) -> None:
    played, exchange = answering(play)
    played.end.end(exchange)
    played.said()
    stream = played.end.open_stream(exchange)
    with pytest.raises(CartdeckError) as caught:
        stream.write(b"x")
    assert caught.value.code is Code.CANCELLED
    assert played.said() == []
