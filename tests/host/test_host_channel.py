"""The frame pipes of one process: one write for a crowd, a full pipe, bounded control frames, and how it ends."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from cartdeck.sessions.channel import Channel
from cartdeck.sessions.process import Pipes
from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.anyio


@dataclass
class Bench:
    """A channel whose other end is a connection that the test drives by hand."""

    channel: Channel
    host: wire.Connection
    peer: wire.Connection
    inbox: int
    outbox: int
    events: list[wire.Event] = field(default_factory=list[wire.Event])
    lost: list[CartdeckError | None] = field(default_factory=list[CartdeckError | None])

    def read(self, most: int = 1 << 20) -> list[wire.Event]:
        """What the host wrote, as the peer understands it."""
        return self.peer.receive(os.read(self.inbox, most))

    def write(self) -> None:
        for buffer in self.peer.outgoing():
            os.write(self.outbox, buffer)

    async def turn(self, done: Any = None) -> None:
        """Let the loop turn until `done()`; at least a few times."""
        for _ in range(5):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while done is not None and not done():  # noqa: ASYNC110  # the channel has no event for it
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    inbox, to_peer = os.pipe()
    from_peer, outbox = os.pipe()
    os.set_blocking(to_peer, False)
    os.set_blocking(from_peer, False)
    host, peer = wire.Connection(wire.Role.HOST), wire.Connection(wire.Role.CARTRIDGE)
    events: list[wire.Event] = []
    lost: list[CartdeckError | None] = []
    channel = Channel(host, Pipes(to_peer, from_peer), on_events=events.extend, on_lost=lost.append)
    bench = Bench(channel, host, peer, inbox, outbox, events, lost)
    host.send_hello()
    channel.flush()
    bench.read()
    bench.write()
    await bench.turn(lambda: events)
    assert isinstance(events.pop(), wire.HelloReceived)
    yield bench
    channel.close()
    for descriptor in (bench.inbox, bench.outbox):
        if descriptor >= 0:
            os.close(descriptor)


async def test_what_a_crowd_sends_leaves_in_one_write(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = os.writev

    def counted(descriptor: int, buffers: Any) -> int:
        writes.append(len(buffers))
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", counted)
    for number in range(100):
        bench.host.request("cap:effect=none", {"data": str(number).encode()})
        bench.channel.flush_soon()
    await bench.turn()
    assert len(writes) == 1
    assert len(bench.read()) == 100


async def test_a_full_pipe_is_waited_for_and_nothing_is_lost(bench: Bench) -> None:
    exchange = bench.host.request("cap:effect=none", complete=False)
    stream = bench.host.open_stream(exchange, name="data")
    data = bytes(range(256)) * 8192
    stream.write(data)
    stream.close()
    bench.host.end(exchange)
    bench.channel.flush()
    assert bench.channel.is_blocked
    got = b""
    ended = False
    while not ended:
        await bench.turn()
        for event in bench.read():
            if isinstance(event, wire.ChunkReceived):
                got += event.payload
                event.stream.take()
            ended = ended or isinstance(event, wire.ArgumentsEnded)
        bench.write()
    assert got == data
    await bench.turn(lambda: not bench.channel.is_blocked)


async def test_control_frames_that_nobody_reads_are_bounded(bench: Bench) -> None:
    for _ in range(3000):
        bench.host.request("cap:effect=none", {"data": b"x" * 4000})
        bench.channel.flush()
        if not bench.channel.is_writing:
            break
    await bench.turn(lambda: bench.lost)
    error = bench.lost[0]
    assert error is not None
    assert error.code is Code.PROTOCOL_VIOLATION
    assert "did not read" in str(error)


async def test_an_end_of_file_is_told_once_after_what_came_before(bench: Bench) -> None:
    bench.peer.log(None, "info", "leaving")
    bench.write()
    os.close(bench.outbox)
    bench.outbox = -1
    await bench.turn(lambda: bench.lost)
    assert isinstance(bench.events[0], wire.ConnectionLogged)
    assert bench.lost == [None]


async def test_damage_is_told_with_its_error(bench: Bench) -> None:
    os.write(bench.outbox, b"\xff\xff\xff\xff\x85\x01\x03 and more")
    await bench.turn(lambda: bench.lost)
    error = bench.lost[0]
    assert error is not None
    assert error.code is Code.FRAME_TOO_LARGE


async def test_a_pipe_that_nobody_reads_any_more_is_told_after_the_last_words(bench: Bench) -> None:
    os.close(bench.inbox)
    bench.inbox = -1
    bench.host.request("cap:effect=none", {})
    bench.channel.flush()
    bench.peer.log(None, "info", "last words")
    bench.write()
    await bench.turn(lambda: bench.lost)
    assert isinstance(bench.events[0], wire.ConnectionLogged)
    error = bench.lost[0]
    assert error is not None
    assert error.code is Code.CARTRIDGE_DIED


async def test_a_closed_channel_is_quiet(bench: Bench) -> None:
    bench.channel.close()
    bench.channel.flush()
    bench.channel.flush_soon()
    await bench.turn()
    assert bench.lost == []


async def test_what_takes_long_to_deal_with_is_read_in_smaller_pieces_and_in_larger_ones_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of tiny frames must not hold the loop for as long as the whole pipe takes."""
    reads: list[int] = []
    delay_s = 0.02
    real, received = os.readv, bench.host.received
    body = msgpack.packb({1: wire.Kind.HEARTBEAT, 2: 0, 99: bytes(6000)})
    beat = len(body).to_bytes(4, "big") + body

    async def flood() -> int:
        """Fill the pipe, and let it be read; the largest read."""
        reads.clear()
        data = beat * (60_000 // len(beat))
        os.write(bench.outbox, data)
        await bench.turn(lambda: sum(reads) == len(data))
        return max(reads)

    def deal(size: int) -> list[wire.Event]:
        time.sleep(delay_s)
        return received(size)

    def read(descriptor: int, buffers: Any) -> int:
        size = real(descriptor, buffers)
        reads.append(size)
        return size

    monkeypatch.setattr(os, "readv", read)
    monkeypatch.setattr(bench.host, "received", deal)
    assert await flood() > 50_000
    assert await flood() <= 30_000
    assert await flood() <= 16 * 1024
    delay_s = 0.0
    sizes = [await flood()]
    while sizes[-1] <= 50_000 and len(sizes) < 100:  # other work of the machine may hold up a turn now and then
        sizes.append(await flood())
    assert sizes[-1] > 50_000, sizes
    assert len(bench.events) == (3 + len(sizes)) * (60_000 // len(beat))
