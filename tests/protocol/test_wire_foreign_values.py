"""Values that handlers and callers make: what the other end would refuse never leaves, and a terminal always does."""

import enum
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.limits import MAX_STREAM_TEXT

Kind = wire.Kind
DEEP: Any = []
for _ in range(30):
    DEEP = [DEEP]

FOREIGN: dict[str, Any] = {
    "a number as a key": {"counts": {1: 2}},
    "bytes as a key": {"counts": {b"a": 2}},
    "nested too deep": {"deep": DEEP},
    "a set": {"set": {1}},
    "an object": {"object": object()},
    "a number too large": {"n": 1 << 70},
    "too many bytes": {"blob": bytes(70_000)},
    "a list in a list in itself": {"loop": (loop := [])},
}
loop.append(loop)


class Speed(enum.StrEnum):
    FAST = "fast"


def test_what_is_nearly_plain_leaves_as_plain(play: Any) -> None:
    played = play(wire.Role.CARTRIDGE)
    exchange = played.opened(asks=False)
    played.end.end(exchange, provenance={"pair": (1, 2), "speed": Speed.FAST, "yes": True, "none": None, "raw": b"1"})
    [end] = played.said()
    assert end[5]["provenance"] == {"pair": [1, 2], "speed": "fast", "yes": True, "none": None, "raw": b"1"}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=[name.replace(" ", "-") for name in FOREIGN])
def test_a_provenance_that_would_be_refused_is_its_makers_error(play: Any, value: Any) -> None:
    played = play(wire.Role.CARTRIDGE)
    exchange = played.opened(asks=False)
    with pytest.raises(CartdeckError) as caught:
        played.end.end(exchange, provenance=value)
    assert caught.value.code in (Code.FRAME_TOO_LARGE, Code.INTERNAL)
    assert played.said() == []
    assert exchange.is_open, "the terminal is still owed"
    played.end.fail(exchange, caught.value)
    assert [one[1] for one in played.said()] == [Kind.ERR]


@pytest.mark.parametrize("value", FOREIGN.values(), ids=[name.replace(" ", "-") for name in FOREIGN])
def test_an_error_leaves_without_the_details_that_would_be_refused(play: Any, value: Any) -> None:
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    exchange, asked = cartridge.opened(asks=False), host.opened(asks=True)
    assert exchange.id == asked.id
    error = failure(Code.BAD_ARGUMENT, "m" * 20_000, argument="a" * 70_000, phase="p" * 70_000, details=value)
    cartridge.end.fail(exchange, error)
    cartridge.end.refuse(error)
    failed, refused = host.end.receive(b"".join(cartridge.end.outgoing()))
    for event in (failed, refused):
        assert event.error.code is Code.BAD_ARGUMENT
        assert event.error.details == {}
        assert event.error.message.startswith("mmm")
        assert event.error.argument is not None


def test_details_that_are_plain_arrive(play: Any) -> None:
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    exchange, _ = cartridge.opened(asks=False), host.opened(asks=True)
    details = {"lines": ["one", "two"], "exit_code": -9, "provenance": {"seed": 1}}
    cartridge.end.fail(exchange, failure(Code.CARTRIDGE_DIED, "died", details=details, phase="loading"))
    [failed] = host.end.receive(b"".join(cartridge.end.outgoing()))
    assert (failed.error.details, failed.error.phase) == (details, "loading")


def test_text_that_is_not_utf_8_leaves_as_escapes(play: Any) -> None:
    """A file name on Linux may be any bytes; Python reads them as lone surrogates."""
    name = b"model-\xff.gguf".decode(errors="surrogateescape")
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    exchange, own = cartridge.opened(asks=False), host.opened(asks=True)
    cartridge.end.log(exchange, "info", f"reading {name}", phase=name)
    cartridge.end.open_stream(exchange, name=name)
    [logged, started] = host.end.receive(b"".join(cartridge.end.outgoing()))
    assert logged.message == "reading model-\\udcff.gguf"
    assert started.stream.name == "model-\\udcff.gguf"
    host.end.cancel(own, name)
    host.end.request(f"cap:{name}", {name: b"1"})
    assert len(cartridge.end.receive(b"".join(host.end.outgoing()))) == 2
    cartridge.end.fail(exchange, failure(Code.FILE_NOT_FOUND, f"no {name}", details={"path": name}))
    [failed] = host.end.receive(b"".join(cartridge.end.outgoing()))
    assert failed.error.details == {"path": "model-\\udcff.gguf"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1 << 70, 10**400, True, -1], ids=lambda n: str(n)[:9])
def test_a_progress_line_leaves_whatever_its_numbers_are(play: Any, number: float) -> None:
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    exchange, _ = cartridge.opened(asks=False), host.opened(asks=True)
    cartridge.end.log(exchange, "progress" * 100, "m" * 100_000, progress=number, work=number, total=number)
    [logged] = host.end.receive(b"".join(cartridge.end.outgoing()))
    assert isinstance(logged, wire.Logged)
    assert logged.progress in (None, 0.0, 1.0)
    assert logged.work in (None, 1.0)


def test_a_stream_whose_name_leaves_no_room_for_a_payload_is_refused_to_its_maker(play: Any) -> None:
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    exchange, _ = cartridge.opened(asks=False), host.opened(asks=True)
    most = "ü" * (MAX_STREAM_TEXT // 2)
    stream = cartridge.end.open_stream(exchange, name=most[:-10], media=most[-10:], is_sequence=True)
    stream.write(bytes(cartridge.end.max_chunk))
    stream.close()
    [started] = host.end.receive(b"".join(cartridge.end.outgoing()))
    assert started.payload == bytes(cartridge.end.max_chunk)
    with pytest.raises(CartdeckError) as caught:
        cartridge.end.open_stream(exchange, name=most, media="m")
    assert caught.value.code is Code.FRAME_TOO_LARGE
    assert exchange.next_stream == 1, "no number was used up"


def test_a_request_that_is_more_than_a_frame_is_refused_to_its_maker(play: Any) -> None:
    played = play()
    with pytest.raises(CartdeckError) as caught:
        played.end.request("cap:x", {"a": bytes(70_000)})
    assert caught.value.code is Code.FRAME_TOO_LARGE
    assert not played.end.exchanges
    assert played.said() == []
    assert played.is_well()


keys = st.text(max_size=3) | st.integers()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(Speed.FAST),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(keys, values, max_size=3))
def test_whatever_a_handler_says_the_connection_lives_and_a_terminal_comes(play: Any, value: Any) -> None:
    cartridge, host = play(wire.Role.CARTRIDGE), play(wire.Role.HOST)
    for _ in range(2):
        exchange, _ = cartridge.opened(asks=False), host.opened(asks=True)
        try:
            cartridge.end.end(exchange, provenance=value)
        except CartdeckError as error:
            cartridge.end.fail(exchange, failure(error.code, error.message, details=value))
        [terminal] = host.end.receive(b"".join(cartridge.end.outgoing()))
        assert isinstance(terminal, wire.Finished | wire.Failed)


def test_a_heartbeat_is_made_in_another_thread_while_frames_are_made_in_this_one(frames_in: Any) -> None:
    beats: list[bytes] = []

    def beat() -> None:
        for count in range(2000):
            beats.append(wire.encode_heartbeat(rss_bytes=count, open_requests=1, stragglers=2, strays=3))

    thread = threading.Thread(target=beat)
    thread.start()
    end = wire.Connection(wire.Role.HOST)
    for number in range(2000):
        end.request(f"cap:{number}")
    thread.join(30)
    assert not thread.is_alive()
    assert [one[10] for one in frames_in(b"".join(end.outgoing()))] == [f"cap:{number}" for number in range(2000)]
    assert [frames_in(one)[0][5]["rss_bytes"] for one in beats] == list(range(2000))
