"""Two connections joined back to back: what one says, the other hears."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure


class Pair:
    """A host and a cartridge end; `pump` carries bytes until both are silent, cut into pieces of `cut` bytes."""

    def __init__(self, cut: int = 1 << 30, **limits: int) -> None:
        self.host = wire.Connection(wire.Role.HOST, limits=wire.Limits(**limits), software="host")
        self.cartridge = wire.Connection(wire.Role.CARTRIDGE, limits=wire.Limits(**limits), manifest=b"{}")
        self.cut = cut
        self.at_host: list[Any] = []
        self.at_cartridge: list[Any] = []
        self.host.send_hello()
        self.pump()

    def pump(self) -> None:
        while self.host.has_outgoing or self.cartridge.has_outgoing:
            moved = self._carry(self.host, self.cartridge, self.at_cartridge)
            moved += self._carry(self.cartridge, self.host, self.at_host)
            if not moved:
                return

    def _carry(self, source: wire.Connection, target: wire.Connection, events: list[Any]) -> int:
        data = b"".join(source.outgoing())
        for start in range(0, len(data), self.cut):
            events += target.receive(data[start : start + self.cut])
        return len(data)

    def open(self, cap: str = "cap:echo", **options: Any) -> tuple[wire.Exchange, wire.Exchange]:
        exchange = self.host.request(cap, **options)
        self.pump()
        request = self.at_cartridge[-1]
        assert isinstance(request, wire.RequestReceived)
        return exchange, request.exchange


def only(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if type(event) is kind]


def test_the_greeting_agrees_on_the_smaller_chunk_and_carries_the_manifest() -> None:
    host = wire.Connection(wire.Role.HOST, limits=wire.Limits(max_chunk=4096))
    cartridge = wire.Connection(wire.Role.CARTRIDGE, manifest=b'{"name": "x"}')
    host.send_hello()
    cartridge.receive(b"".join(host.outgoing()))
    [hello] = host.receive(b"".join(cartridge.outgoing()))
    assert hello.manifest == b'{"name": "x"}'
    assert host.max_chunk == cartridge.max_chunk == 4096
    assert host.is_greeted
    assert cartridge.is_greeted


def test_a_small_call_is_three_frames() -> None:
    pair = Pair()
    exchange, theirs = pair.open(arguments={"data": b"x" * 64})
    answer = pair.cartridge.open_stream(theirs)
    answer.write(b"x" * 64)
    answer.close()
    pair.cartridge.end(theirs, provenance={"seed": 1})
    frames = _frames(b"".join(pair.cartridge.outgoing()))
    assert [frame[1] for frame in frames] == [wire.Kind.STREAM_START, wire.Kind.END]
    assert frames[0][6] == b"x" * 64
    assert not theirs.is_open
    assert exchange.is_open


def test_the_terminal_comes_last_and_closes_both_ends() -> None:
    pair = Pair()
    exchange, theirs = pair.open()
    out = pair.cartridge.open_stream(theirs)
    out.write(b"a" * 1_000_000)
    pair.cartridge.end(theirs, progress=0.5)
    pair.pump()
    chunks = only(pair.at_host, wire.ChunkReceived)
    assert b"".join(event.payload for event in chunks) == b"a" * 1_000_000
    terminal = pair.at_host[-1]
    assert isinstance(terminal, wire.Finished)
    assert terminal.progress == 0.5
    assert not exchange.is_open
    assert not pair.host.exchanges
    assert not pair.cartridge.exchanges


def test_a_sender_stops_at_the_end_of_its_credit_and_goes_on_when_granted() -> None:
    pair = Pair(max_chunk=1024, initial_credit=4)
    _, theirs = pair.open()
    out = pair.cartridge.open_stream(theirs)
    out.write(b"b" * 10_240)
    pair.pump()
    chunks = only(pair.at_host, wire.ChunkReceived)
    assert len(chunks) == 4
    assert out.pending_bytes == 10_240 - 4096
    stream = chunks[0].stream
    stream.take()
    pair.pump()
    assert len(only(pair.at_host, wire.ChunkReceived)) == 4, "half a window is granted at once, not less"
    stream.take()
    pair.pump()
    assert len(only(pair.at_host, wire.ChunkReceived)) == 6
    stream.take(1)
    stream.settle()
    pair.pump()
    assert len(only(pair.at_host, wire.ChunkReceived)) == 7


def test_streams_of_one_request_take_turns() -> None:
    pair = Pair(max_chunk=1024)
    _, theirs = pair.open()
    first, second = pair.cartridge.open_stream(theirs), pair.cartridge.open_stream(theirs, name="events")
    first.write(b"1" * 4096)
    second.write(b"2" * 4096)
    pair.pump()
    order = [event.payload[:1] for event in only(pair.at_host, wire.ChunkReceived)]
    assert order == [b"1", b"2"] * 4


def test_cancel_wakes_the_writer_with_an_error_and_the_terminal_still_comes() -> None:
    pair = Pair(max_chunk=1024, initial_credit=1)
    exchange, theirs = pair.open()
    woken: list[bool] = []
    out = pair.cartridge.open_stream(theirs)
    out.write(b"c" * 5000)
    out.on_writable = lambda: woken.append(True)
    pair.pump()
    assert not woken
    pair.host.cancel(exchange, "enough")
    pair.pump()
    assert woken
    [cancel] = only(pair.at_cartridge, wire.CancelReceived)
    assert cancel.reason == "enough"
    with pytest.raises(CartdeckError) as caught:
        out.write(b"more")
    assert caught.value.code is Code.CANCELLED
    pair.cartridge.fail(theirs, failure(Code.CANCELLED, "stopped", details={"tokens": 3}))
    pair.pump()
    [failed] = only(pair.at_host, wire.Failed)
    assert failed.error.code is Code.CANCELLED
    assert failed.error.details == {"tokens": 3}
    assert not pair.host.exchanges


def test_what_came_before_a_cancel_and_arrives_after_it_is_passed_over_uncounted() -> None:
    pair = Pair()
    exchange, theirs = pair.open()
    out = pair.cartridge.open_stream(theirs)
    out.write(b"late")
    pair.cartridge.log(theirs, "info", "late too")
    in_flight = b"".join(pair.cartridge.outgoing())
    pair.host.cancel(exchange, "")
    assert pair.host.receive(in_flight) == []
    assert pair.host.stragglers == pair.host.strays == 0


def test_a_log_keeps_to_the_range_and_a_bad_number_never_leaves() -> None:
    pair = Pair()
    _, theirs = pair.open()
    for value in (0.5, 7.0, -1.0, float("nan"), float("inf")):
        pair.cartridge.log(theirs, "progress", "…", progress=value, work=value)
    pair.pump()
    logged = only(pair.at_host, wire.Logged)
    assert [event.progress for event in logged] == [0.5, 1.0, 0.0, None, None]
    assert [event.work for event in logged] == [0.5, 7.0, None, None, None]
    assert pair.host.bad_progress == 1, "a negative count is the receiver's to refuse"


def test_a_provenance_too_large_for_a_frame_is_refused_to_its_maker() -> None:
    pair = Pair()
    _, theirs = pair.open()
    with pytest.raises(CartdeckError) as caught:
        pair.cartridge.end(theirs, provenance={"text": "x" * 70_000})
    assert caught.value.code is Code.FRAME_TOO_LARGE
    pair.cartridge.fail(theirs, caught.value)
    pair.pump()
    assert pair.at_host[-1].error.code is Code.FRAME_TOO_LARGE


def test_versions_that_differ_are_both_named() -> None:
    host = wire.Connection(wire.Role.HOST, software="host 9")
    cartridge = wire.Connection(wire.Role.CARTRIDGE, software="cartridge 1")
    host.send_hello()
    data = b"".join(host.outgoing()).replace(b"protocol\x01", b"protocol\x02")
    [damaged] = cartridge.receive(data)
    assert damaged.error.code is Code.VERSION_MISMATCH
    assert "version 1" in damaged.error.message
    assert "version 2" in damaged.error.message
    assert cartridge.has_outgoing, "its own HELLO leaves, so that the host can name both too"


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 400), max_size=60))
def test_any_split_gives_the_same_events(sizes: list[int]) -> None:
    whole = _recording()
    one = wire.Connection(wire.Role.HOST)
    one.send_hello()
    first = one.request("cap:echo", complete=True)
    other = wire.Connection(wire.Role.HOST)
    other.send_hello()
    other.request("cap:echo", complete=True)
    expected = [_shape(event) for event in one.receive(whole)]
    found: list[Any] = []
    position = 0
    for size in [*sizes, len(whole)]:
        found += [_shape(event) for event in other.receive(whole[position : position + size])]
        position += size
    assert found == expected
    assert not first.is_open


def _recording() -> bytes:
    """The bytes that a cartridge sends: hello, a log, two streams, an end."""
    cartridge = wire.Connection(wire.Role.CARTRIDGE, manifest=b"{}")
    host = wire.Connection(wire.Role.HOST)
    host.send_hello()
    host.request("cap:echo")
    [_, request] = cartridge.receive(b"".join(host.outgoing()))
    sent = b"".join(cartridge.outgoing())
    cartridge.log(request.exchange, "info", "début", progress=0.25, phase="load", work=3, total=9)
    main = cartridge.open_stream(request.exchange)
    main.write(b"m" * 2000)
    sent += b"".join(cartridge.outgoing())
    events = cartridge.open_stream(request.exchange, name="events", is_sequence=True)
    events.write(wire.encode_item({"a": [1, 2.5, "x", b"y"]}))
    cartridge.end(request.exchange, provenance={"k": [1]})
    sent += b"".join(cartridge.outgoing())
    sent += wire.encode_heartbeat(rss_bytes=1, open_requests=0, stragglers=0, strays=0)
    return sent


def _shape(event: Any) -> tuple[Any, ...]:
    parts: list[Any] = [type(event).__name__]
    for name in type(event).__slots__:
        value = getattr(event, name)
        if isinstance(value, wire.Exchange):
            value = value.id
        elif isinstance(value, wire.InStream):
            value = (value.number, value.name, value.is_sequence)
        parts.append(value)
    return tuple(parts)


def _frames(data: bytes) -> list[dict[int, Any]]:
    import msgpack

    frames = []
    while data:
        size = int.from_bytes(data[:4], "big")
        frames.append(msgpack.unpackb(data[4 : 4 + size], strict_map_key=False))
        data = data[4 + size :]
    return frames
