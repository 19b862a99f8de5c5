"""Two ends and a pipe that loses nothing but cuts anywhere: whatever both do, what is written is what is read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure

ENDS = (0, 1)  # the role's value: 0 is the host, 1 the cartridge
Events = wire.StreamStarted | wire.ChunkReceived | wire.StreamEnded


@dataclass
class Written:
    """A stream as its writer knows it."""

    stream: wire.OutStream
    data: bytearray = field(default_factory=bytearray)
    items: list[Any] = field(default_factory=list)


@dataclass
class Read:
    """A stream as its reader knows it."""

    stream: wire.InStream
    data: bytearray = field(default_factory=bytearray)
    items: list[Any] = field(default_factory=list)
    decoder: wire.ItemDecoder = field(default_factory=wire.ItemDecoder)
    untaken: int = 0
    is_ended: bool = False

    def take_in(self, payload: bytes) -> None:
        self.data += payload
        if self.stream.is_sequence:
            self.items += self.decoder.feed(payload)


@dataclass
class Side:
    """One end's view of a call."""

    exchange: wire.Exchange
    written: list[Written] = field(default_factory=list)
    read: dict[int, Read] = field(default_factory=dict)
    terminals: list[Any] = field(default_factory=list)
    has_said_end: bool = False
    is_cancelled: bool = False
    arguments_ended: bool = False
    logs: list[str] = field(default_factory=list)


@dataclass
class Call:
    requester: int
    sides: dict[int, Side]  # by end
    arguments: dict[str, bytes]
    parent: int | None
    logs: list[str] = field(default_factory=list)
    has_failed: bool = False


class TwoEnds(RuleBasedStateMachine):
    """Few rules that each do much: a run tries some of them only, and a chunk needs a call, a stream, a write and both
    pipes."""

    @initialize(
        max_chunk=st.sampled_from([1024, 2000]),
        credits=st.tuples(st.integers(1, 5), st.integers(1, 5)),
        complete=st.booleans(),
    )
    def greet(self, max_chunk: int, credits: tuple[int, int], complete: bool) -> None:
        self.ends = [
            wire.Connection(role, limits=wire.Limits(max_chunk=max_chunk, initial_credit=credits[role.value]))
            for role in (wire.Role.HOST, wire.Role.CARTRIDGE)
        ]
        self.pipes = [bytearray(), bytearray()]  # by the end that writes into it
        self.calls: dict[int, Call] = {}
        self.beats = 0
        self.ends[0].send_hello()
        self.drain()
        for end in ENDS:
            self.request(end=end, inline=b"inline", complete=complete)
        self.drain()

    # what a caller or a handler may do

    @rule(end=st.sampled_from(ENDS), inline=st.binary(max_size=200), complete=st.booleans())
    def request(self, end: int, inline: bytes, complete: bool) -> None:
        connection = self.ends[end]
        served = [one for one in connection.exchanges.values() if not one.is_requester]
        parent = served[-1] if served and end == 1 else None
        arguments = {"data": inline} if inline else {}
        exchange = connection.request("cap:x", arguments, complete=complete, parent=parent)
        side = Side(exchange, has_said_end=complete)
        self.calls[exchange.id] = Call(end, {end: side}, arguments, None if parent is None else parent.id)

    def pick(self, which: int, wants: Callable[[Call, int, Side], bool]) -> tuple[Call, int, Side] | None:
        sides = ((call, end, side) for call in self.calls.values() for end, side in call.sides.items())
        found = [one for one in sides if wants(*one)]
        return found[which % len(found)] if found else None

    @rule(
        which=st.integers(0, 99),
        is_new=st.booleans(),
        is_sequence=st.booleans(),
        sizes=st.lists(st.sampled_from([0, 1, 10, 1000, 1024, 1025, 5000]), max_size=4),
        closes=st.booleans(),
    )
    def write(self, which: int, is_new: bool, is_sequence: bool, sizes: list[int], closes: bool) -> None:
        picked = self.pick(which, lambda _call, _end, side: not side.has_said_end)
        if picked is None:
            return
        _, end, side = picked
        streams = [one for one in side.written if not one.stream.closing]
        if len(side.written) < 4 and (is_new or not streams):
            opened = self.ends[end].open_stream(
                side.exchange, name=f"s{len(side.written)}", is_sequence=is_sequence, media="media:"
            )
            streams = [Written(opened)]
            side.written += streams
        if streams:
            written = streams[which % len(streams)]
            for size in sizes:
                self.write_one(written, size)
            if closes:
                written.stream.close()

    def write_one(self, written: Written, size: int) -> None:
        stream, fill = written.stream, len(written.data) % 251
        item = [fill, bytes((fill,)) * size]
        payload = wire.encode_item(item) if stream.is_sequence else item[1]
        if stream.error is not None:
            with pytest.raises(type(stream.error)) as caught:
                stream.write(payload)
            assert caught.value is stream.error
            return
        stream.write(payload)
        written.data += payload
        written.items += [item] if stream.is_sequence else []

    @rule(which=st.integers(0, 99), how=st.sampled_from(["end", "end", "end", "fail", "cancel"]))
    def finish(self, which: int, how: str) -> None:
        is_asking = {"end": None, "fail": False, "cancel": True}[how]
        picked = self.pick(
            which,
            lambda call, end, side: (
                side.exchange.is_open
                and (how != "end" or not side.has_said_end)
                and is_asking in (None, end == call.requester)
            ),
        )
        if picked is None:
            return
        call, end, side = picked
        side.has_said_end = True
        if how == "end":
            self.ends[end].end(side.exchange, progress=0.5, provenance={"n": 1})
        elif how == "cancel":
            side.is_cancelled = True
            self.ends[end].cancel(side.exchange, "enough")
        else:
            call.has_failed = True
            self.ends[end].fail(side.exchange, failure(Code.OUT_OF_MEMORY, "no room"))

    @rule(which=st.integers(0, 99), progress=st.none() | st.floats())
    def log(self, which: int, progress: float | None) -> None:
        picked = self.pick(which, lambda call, end, side: end != call.requester and not side.has_said_end)
        if picked is not None:
            call, end, side = picked
            call.logs.append(f"line {len(call.logs)}")
            self.ends[end].log(side.exchange, "info", call.logs[-1], progress=progress, work=3)

    @rule(which=st.integers(0, 99), count=st.integers(1, 4), settle=st.booleans())
    def take(self, which: int, count: int, settle: bool) -> None:
        picked = self.pick(which, lambda _call, _end, side: any(one.untaken for one in side.read.values()))
        if picked is not None:
            read = next(one for one in picked[2].read.values() if one.untaken)
            count = min(count, read.untaken)
            read.untaken -= count
            read.stream.take(count)
            if settle:
                read.stream.settle()

    # what the pipe may do

    @rule(
        end=st.sampled_from(ENDS),
        room=st.sampled_from([0, 1, 1500, 1 << 30]),
        size=st.sampled_from([0, 1, 3, 40, 700, 1 << 30]),
        beats=st.booleans(),
    )
    def move(self, end: int, room: int, size: int, beats: bool) -> None:
        """What the end has to say goes into the pipe, and so many bytes come out at the other end."""
        pipe = self.pipes[end]
        pipe += b"".join(self.ends[end].outgoing(room))
        if beats and end == wire.Role.CARTRIDGE.value:
            self.beats += 1
            pipe += wire.encode_heartbeat(rss_bytes=1, open_requests=2, stragglers=0, strays=0)
        part, pipe[:size] = bytes(pipe[:size]), b""
        for event in self.ends[1 - end].receive(part):
            self.on_event(1 - end, event)

    def on_event(self, end: int, event: Any) -> None:
        assert not isinstance(event, wire.ConnectionDamaged | wire.ExchangeDamaged | wire.StrayReceived), event
        if isinstance(event, wire.HelloReceived):
            return
        if isinstance(event, wire.HeartbeatReceived):
            self.beats -= 1
            return
        call = self.calls[event.exchange.id]
        if isinstance(event, wire.RequestReceived):
            assert end != call.requester
            assert (event.arguments, event.parent) == (call.arguments, call.parent)
            call.sides[end] = Side(event.exchange)
            return
        side = call.sides[end]
        assert side.exchange is event.exchange
        assert not side.terminals, f"{event} behind the terminal"
        if isinstance(event, Events):
            assert not side.is_cancelled
            self.on_stream_event(side, event)
        elif isinstance(event, wire.Logged):
            side.logs.append(event.message)
            assert event.progress is None or 0 <= event.progress <= 1
        elif isinstance(event, wire.ArgumentsEnded):
            assert end != call.requester
            assert not side.arguments_ended
            side.arguments_ended = True
        elif isinstance(event, wire.CancelReceived):
            assert not side.is_cancelled
            side.is_cancelled = True
        else:
            assert isinstance(event, wire.Finished | wire.Failed)
            assert end == call.requester
            side.terminals.append(event)

    def on_stream_event(self, side: Side, event: Any) -> None:
        if isinstance(event, wire.StreamStarted):
            assert event.stream.number == len(side.read)
            read = side.read[event.stream.number] = Read(event.stream)
            if event.payload is not None:
                read.take_in(event.payload)
                read.is_ended = True
            return
        read = side.read[event.stream.number]
        assert not read.is_ended
        if isinstance(event, wire.StreamEnded):
            read.is_ended = True
        else:
            read.take_in(event.payload)
            read.untaken += 1

    # what always holds

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        for call in getattr(self, "calls", {}).values():
            for end, side in call.sides.items():
                other = call.sides.get(1 - end)
                for number, read in side.read.items():
                    assert other is not None
                    written = other.written[number]
                    assert written.data.startswith(read.data)
                    assert written.items[: len(read.items)] == read.items
                    assert (read.stream.name, read.stream.media) == (written.stream.name, "media:")

    @invariant()
    def credit_is_never_overdrawn(self) -> None:
        for call in getattr(self, "calls", {}).values():
            for end, side in call.sides.items():
                other = call.sides.get(1 - end)
                for written in side.written:
                    stream = written.stream
                    assert stream.credit >= 0
                    read = None if other is None else other.read.get(stream.number)
                    if read is not None and stream.error is None and not read.stream.ended:
                        on_the_way = stream.index - read.stream.index
                        assert 0 <= on_the_way <= read.stream.window
                        assert stream.credit + on_the_way <= read.stream.window
                        assert read.stream.window + read.stream.owed + read.untaken == self.window_of(1 - end)

    def window_of(self, end: int) -> int:
        return self.ends[end].limits.initial_credit

    @invariant()
    def nothing_is_lost(self) -> None:
        for connection in getattr(self, "ends", []):
            assert (connection.strays, connection.bad_progress, connection.error) == (0, 0, None)

    # the end of the story

    def drain(self) -> None:
        """Carry until both are silent, reading everything."""
        for _ in range(10_000):
            for end in ENDS:
                self.move(end=end, room=1 << 30, size=1 << 30, beats=False)
            for call in self.calls.values():
                for side in call.sides.values():
                    for read in side.read.values():
                        read.stream.take(read.untaken)
                        read.untaken = 0
                        read.stream.settle()
            if not any(self.pipes) and not any(end.has_outgoing for end in self.ends):
                return
        raise AssertionError("it never ends")

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        self.drain()
        for call in self.calls.values():
            for end, side in sorted(call.sides.items(), key=lambda one: one[0] != call.requester):
                self.ends[end].end(side.exchange)
        self.drain()
        for connection in self.ends:
            assert connection.exchanges == {}
            assert connection.is_between_frames
        self.nothing_is_lost()
        self.what_is_read_is_what_was_written()
        assert self.beats == 0
        for call in self.calls.values():
            self.check_ended(call)

    def check_ended(self, call: Call) -> None:
        asked, answered = call.sides[call.requester], call.sides[1 - call.requester]
        [terminal] = asked.terminals
        assert isinstance(terminal, wire.Failed if call.has_failed else wire.Finished)
        assert answered.terminals == []
        if asked.is_cancelled:
            return
        assert asked.logs == call.logs
        if isinstance(terminal, wire.Finished):
            self.check_whole(asked, answered)
        if answered.arguments_ended:
            self.check_whole(answered, asked)

    def check_whole(self, reader: Side, writer: Side) -> None:
        assert len(reader.read) == len(writer.written)
        for number, read in reader.read.items():
            assert read.is_ended
            read.decoder.finish()
            assert (read.data, read.items) == (writer.written[number].data, writer.written[number].items)


TwoEnds.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTwoEnds = TwoEnds.TestCase
