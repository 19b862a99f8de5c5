"""What a thread that computes sends past the event loop is one output with what the loop sends: in order, within the
credit, and nothing once the call is over."""

import os
import threading
from collections.abc import Iterator

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk.outbox import Outbox
from cartdeck_sdk.shortcut import Shortcut

CREDIT = 4


class Wire:
    """Both ends of a connection with a pipe from the cartridge to the host, and one call that is open."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        self.outbox = Outbox(self.writer)
        self.host = wire.Connection(wire.Role.HOST, limits=wire.Limits(initial_credit=CREDIT), software="host")
        self.connection = wire.Connection(wire.Role.CARTRIDGE, manifest=b"{}", software="cartridge")
        self.text = b""
        self.events: list[wire.Event] = []
        self.host.send_hello()
        self.to_cartridge()
        self.flush()
        self.to_host()
        self.exchange = self.host.request("cap:x")
        [request] = [one for one in self.to_cartridge() if isinstance(one, wire.RequestReceived)]
        self.answering = request.exchange
        self.stream = self.connection.open_stream(self.answering)

    def flush(self) -> None:
        self.outbox.put(self.connection.outgoing())
        self.outbox.flush()

    def to_cartridge(self) -> list[wire.Event]:
        data = b"".join(bytes(one) for one in self.host.outgoing())
        return give(self.connection, data)

    def to_host(self, *, takes: bool = True) -> list[wire.Event]:
        try:
            data = os.read(self.reader, 1 << 20)
        except BlockingIOError:
            return []
        events = give(self.host, data)
        for event in events:
            assert not isinstance(event, wire.ConnectionDamaged | wire.ExchangeDamaged), event
            if isinstance(event, wire.ChunkReceived):
                self.text += event.payload
                if takes:
                    event.stream.take()
        self.events += events
        return events


def give(connection: wire.Connection, data: bytes) -> list[wire.Event]:
    events: list[wire.Event] = []
    while data:
        space = connection.buffer()
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        events += connection.received(len(part))
    return events


@pytest.fixture
def pipe() -> Iterator[Wire]:
    made = Wire()
    yield made
    os.close(made.reader)
    os.close(made.writer)


def in_thread(function: object) -> None:
    thread = threading.Thread(target=function)  # pyright: ignore[reportArgumentType]  # a call without arguments
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def begin(pipe: Wire) -> Shortcut:
    pipe.stream.write(b"0")
    shortcut = Shortcut(pipe, pipe.stream)
    assert not shortcut.write(b"closed at first")
    assert shortcut.open()
    return shortcut


def test_pieces_of_both_ways_are_one_text_in_order_within_the_credit(pipe: Wire) -> None:
    shortcut, expected, numbers = begin(pipe), "0", iter(range(1, 200))
    sent = list[int]()

    def send() -> None:
        for number in numbers:
            if not shortcut.write(str(number).encode()):
                sent.append(-number)  # this one has to go by the loop
                return
            sent.append(number)

    for _ in range(20):
        in_thread(send)
        expected += "".join(str(abs(number)) for number in sent)
        left = -sent[-1]
        assert left > 0
        assert 1 <= len(sent) <= 2 * CREDIT + 1
        sent.clear()
        shortcut.close()
        pipe.stream.write(str(left).encode())
        pipe.flush()
        pipe.to_host()
        pipe.to_cartridge()
        assert shortcut.open()
    shortcut.close()
    pipe.connection.end(pipe.answering)
    pipe.flush()
    events = pipe.to_host()
    assert any(isinstance(event, wire.Finished) for event in events)
    assert pipe.text.decode() == expected


def test_what_waits_for_credit_goes_first(pipe: Wire) -> None:
    shortcut = begin(pipe)
    in_thread(lambda: [shortcut.write(b"x") for _ in range(2 * CREDIT)])
    shortcut.close()
    pipe.stream.write(b"waits")
    pipe.flush()
    assert pipe.stream.pending_bytes == 5
    assert not shortcut.open()
    assert not shortcut.write(b"too early")


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_nothing_is_sent_once_the_call_is_over(pipe: Wire, how: str) -> None:
    shortcut = begin(pipe)
    assert shortcut.write(b"1")
    if how == "fail":
        pipe.connection.fail(pipe.answering, failure(Code.HANDLER_FAILED, "broken"))
    else:
        pipe.to_host()
        pipe.host.cancel(pipe.exchange, "enough")
        pipe.to_cartridge()
    assert not shortcut.write(b"late")
    assert not shortcut.open()
    shortcut.close()


def test_a_full_pipe_takes_no_part_of_a_piece_and_the_rest_later(pipe: Wire) -> None:
    shortcut, fill = begin(pipe), b"f" * 65536
    pipe.to_host(takes=False)
    filled = 0
    while True:
        try:
            filled += os.write(pipe.writer, fill)
        except BlockingIOError:
            break
    assert not shortcut.write(b"1")
    assert len(os.read(pipe.reader, filled)) == filled
    assert shortcut.write(b"2")
    pipe.to_host()
    assert pipe.text == b"02"


def test_a_piece_that_is_no_small_one_is_left_to_the_loop(pipe: Wire) -> None:
    shortcut = begin(pipe)
    assert not shortcut.write(b"x" * 4096)
    assert shortcut.write(b"x")
