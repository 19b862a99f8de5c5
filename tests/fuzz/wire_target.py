"""One input of the wire's fuzzer: what an end is made to hear, and what must hold whatever that was.

It does not know who makes the inputs: `fuzz_wire.py` searches for them, `test_fuzz_smoke.py` takes those of the corpus.

An input is two bytes of choices and what is heard. The choices: which end hears (host or cartridge), what it has been
through before, whether somebody reacts to its events, whether the rest is bytes as they come or bodies of frames (two
bytes of length before each; a search that has to keep the lengths of frames right seldom gets past the first), and
where the bytes are cut for the second hearing.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

import msgpack

from cartdeck_protocol import wire
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.frames import decode
from cartdeck_protocol.wire.kinds import KEYS
from cartdeck_protocol.wire.templates import encode_chunk, encode_plain_end, encode_whole

Kind, Role = wire.Kind, wire.Role
GOLDEN: Final = Path(__file__).parent.parent / "data" / "wire_golden.json"

HEADER_BYTES: Final = 2
IS_CARTRIDGE, STATE, REACTS, IS_FRAMED = 0x01, 0x06, 0x08, 0x10
STATES: Final = 4
MOST_HEARD_BYTES: Final = 64 * 1024

EVENTS: Final = get_args(wire.Event)
ENDINGS: Final = {Code.PROTOCOL_VIOLATION, Code.FRAME_TOO_LARGE, Code.VERSION_MISMATCH}
MOST_ANSWER_BYTES: Final = 4096
"""For each frame heard: an error that quotes what was found, and no more."""
SMALL: Final = wire.Limits(
    max_chunk=1024, initial_credit=2, max_item=1024, inline_arguments=64, open_requests=8, streams_per_request=3
)
_INSIDE_A_REQUEST: Final = {
    Kind.CHUNK, Kind.END, Kind.LOG, Kind.ERR, Kind.STREAM_START, Kind.STREAM_END, Kind.CANCEL, Kind.CREDIT,
}  # fmt: skip


def frame(fields: dict[int, Any]) -> bytes:
    body: bytes = msgpack.packb(fields)
    return len(body).to_bytes(4, "big") + body


def bodies(data: bytes) -> Iterator[bytes]:
    """The whole frames at the front of `data`, cut by their lengths alone."""
    while len(data) >= 4:
        end = 4 + int.from_bytes(data[:4], "big")
        if len(data) < end:
            return
        yield data[4:end]
        data = data[end:]


class Subject:
    """One end, and what it went through before the input: `others` are exchanges that the input may leave alone."""

    def __init__(self, role: wire.Role, state: int) -> None:
        limits = SMALL if state >= 2 else wire.Limits()
        self.end = wire.Connection(role, limits=limits, manifest=b"{}")
        self.others: list[wire.Exchange] = []
        self.heard_frames = 0
        self._their_last = -1 if role is Role.HOST else 0
        if role is Role.HOST:
            self.end.send_hello()
        if state:
            hello = {"protocol": 1, "api": 1, "limits": limits.to_wire(), "features": [], "software": "fuzz"}
            self.hear({1: Kind.HELLO, 2: 0, 5: hello})
            self._live(is_sequence=state == 3)
        self.end.outgoing()

    def hear(self, fields: dict[int, Any]) -> list[Any]:
        self.heard_frames += 1
        return self.end.receive(frame(fields))

    def _live(self, *, is_sequence: bool) -> None:
        """Two requests each way with streams both ways, one of this end's cancelled; then the others, one each way."""
        for number in range(3):
            own = self.end.request("cap:op=echo", complete=False)
            self.end.open_stream(own, name="data").write(b"own")
            self._their_last += 2
            self.hear({1: Kind.REQ, 2: self._their_last, 10: "cap:op=peer"})
            theirs = self.end.exchanges[self._their_last]
            self.end.open_stream(theirs).write(b"own" * (number + 1))
            for exchange in (own, theirs):
                self.hear({1: Kind.STREAM_START, 2: exchange.id, 11: 0, 17: is_sequence})
                self.hear({1: Kind.CHUNK, 2: exchange.id, 11: 0, 14: 0, 6: b"\x93\x01"})
            if number == 1:
                self.end.cancel(own, "enough")
            elif number == 2:
                self.others = [own, theirs]


def heard_by(choices: int, data: bytes) -> bytes:
    """What is heard: `data` as it is, or a frame around each of the bodies that it is cut into."""
    data = data[:MOST_HEARD_BYTES]
    if not choices & IS_FRAMED:
        return data
    found = b""
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big")
        body = data[2 : 2 + size]
        found += len(body).to_bytes(4, "big") + body
        data = data[2 + size :]
    return found


def examine(data: bytes) -> int:
    """Let an end hear the input, and raise AssertionError for what must not be. The number of its events."""
    if len(data) < HEADER_BYTES:
        return 0
    choices, cut = data[0], data[1]
    heard = heard_by(choices, data[HEADER_BYTES:])
    role = Role.CARTRIDGE if choices & IS_CARTRIDGE else Role.HOST
    state = (choices & STATE) >> 1
    subject = Subject(role, state)
    reaction = Reaction(subject.end) if choices & REACTS else None
    events = listen(subject.end, [heard], reaction)
    answers = b"".join(subject.end.outgoing())
    check_events(subject.end, events)
    check_bounds(subject.end, events, heard, answers)
    check_answers(answers)
    if reaction is None and cut:
        place = cut * len(heard) // 256
        check_split(Subject(role, state), [heard[:place], heard[place:]], events, answers)
        if (again := rewritten(heard)) != heard:
            check_split(Subject(role, state), [again], events, answers)
    check_radius(subject, heard)
    return len(events)


def listen(end: wire.Connection, pieces: list[bytes], reaction: "Reaction | None" = None) -> list[Any]:
    found: list[Any] = []
    for piece in pieces:
        if end.error is None:
            heard = end.receive(piece)
            found += heard
            if reaction is not None:
                for event in heard:
                    reaction(event)
    return found


class Reaction:
    """Somebody who takes what comes, answers requests, and breaks off where a sequence is no sequence of items."""

    def __init__(self, end: wire.Connection) -> None:
        self._end = end
        self._decoders: dict[tuple[int, int], wire.ItemDecoder] = {}

    def __call__(self, event: Any) -> None:
        end = self._end
        if isinstance(event, wire.ChunkReceived | wire.StreamEnded) and event.stream.is_sequence:
            self._decode(event)
        if isinstance(event, wire.ChunkReceived):
            event.stream.take()
        elif isinstance(event, wire.StreamStarted) and not event.exchange.is_requester and event.exchange.is_open:
            if event.exchange.end_waiting is None:
                with suppress(CartdeckError):  # the other end takes fewer streams than these
                    end.open_stream(event.exchange).write(b"answer")
        elif isinstance(event, wire.ArgumentsEnded):
            end.end(event.exchange, provenance={"seed": 7})
        elif isinstance(event, wire.CancelReceived):
            end.fail(event.exchange, failure(Code.CANCELLED, event.reason))
        elif isinstance(event, wire.RequestReceived) and event.complete:
            end.log(event.exchange, "info", "begun", progress=0.5)

    def _decode(self, event: Any) -> None:
        stream = event.stream
        decoder = self._decoders.setdefault((event.exchange.id, stream.number), wire.ItemDecoder(1024))
        try:
            if isinstance(event, wire.ChunkReceived):
                decoder.feed(event.payload)
            else:
                decoder.finish()
        except CartdeckError as error:
            del self._decoders[event.exchange.id, stream.number]
            self._end.damage(event.exchange, error)


# -- what must hold


def check_events(end: wire.Connection, events: list[Any]) -> None:
    """Each of a known type; the end of the connection is the last of them, and has one of its codes."""
    assert all(type(event) in EVENTS for event in events)
    damaged = [event for event in events if isinstance(event, wire.ConnectionDamaged)]
    assert damaged == ([] if end.error is None else events[-1:])
    assert all(event.error.code in ENDINGS for event in damaged)


def check_bounds(end: wire.Connection, events: list[Any], heard: bytes, answers: bytes) -> None:
    """What is kept and what is said have a bound that does not depend on what the bytes claim."""
    limits = end.limits
    theirs = [exchange for exchange in end.exchanges.values() if not exchange.is_requester]
    assert len(theirs) <= limits.open_requests
    assert all(len(exchange.in_streams) <= limits.streams_per_request for exchange in end.exchanges.values())
    assert sum(len(event.payload or b"") for event in events if hasattr(event, "payload")) <= len(heard)
    assert len(end.buffer()) <= 2 * 1024 * 1024 + limits.frame_bytes(Kind.HELLO)
    frames = 1 + sum(1 for _ in bodies(heard))
    assert len(answers) <= frames * MOST_ANSWER_BYTES + limits.frame_bytes(Kind.CHUNK) * 16


def check_answers(answers: bytes) -> None:
    """What the end says is right by the table, whatever it heard."""
    rest = len(answers)
    for number, body in enumerate(bodies(answers)):
        assert decode(memoryview(body), frame=number, offset=0)[1] in KEYS
        rest -= 4 + len(body)
    assert rest == 0


def check_split(subject: Subject, pieces: list[bytes], events: list[Any], answers: bytes) -> None:
    """Any split of the same bytes gives the same events, and the same answers."""
    again = listen(subject.end, pieces)
    assert [told(event) for event in again] == [told(event) for event in events]
    assert b"".join(subject.end.outgoing()) == answers


def rewritten(heard: bytes) -> bytes:
    """The same maps in msgpack's shortest encoding: frames of a fixed layout go another way through the code then.
    As it was where a frame is not right by the table, or so large that its length decides."""
    found = list(bodies(heard))
    rest = len(heard) - sum(4 + len(body) for body in found)
    maps = [_loose(body) for body in found if len(body) < SMALL.max_chunk and _is_right(body)]
    if rest or len(maps) < len(found):
        return heard
    return b"".join(frame(fields) for fields in maps)


def _is_right(body: bytes) -> bool:
    try:
        return next(iter(decode(memoryview(body), frame=0, offset=0))) == 1
    except CartdeckError:
        return False


def told(event: Any) -> tuple[Any, ...]:
    return (type(event).__name__, *(_plain(getattr(event, name)) for name in type(event).__slots__))


def _plain(value: Any) -> Any:
    if isinstance(value, wire.Exchange):
        return value.id
    if isinstance(value, wire.InStream):
        return (value.number, value.name, value.media, value.is_sequence)
    if isinstance(value, CartdeckError):
        # without the place, which is another when the same frames are longer or shorter
        return (value.code_name, getattr(value, "bare_message", value.message), getattr(value, "frame", None))
    return repr(value)  # a NaN in a meta equals nothing


def check_radius(subject: Subject, heard: bytes) -> None:
    """What broke a law inside a request ended that one; others are as they were, and the connection goes on."""
    end = subject.end
    found = list(bodies(heard))
    if end.error is not None:
        place = None if end.error.frame is None else end.error.frame - subject.heard_frames
        if place is not None and 0 <= place < len(found):
            assert not _is_inside_a_request(end, found[place]), "one request's damage ended the connection"
        return
    named = {fields.get(2) for body in found if isinstance(fields := _loose(body), dict)}
    for exchange in subject.others:
        if exchange.id not in named:
            assert exchange.is_open
            assert not exchange.cancelled
            assert exchange.in_streams[0].index == 1
    if end.is_greeted and end.is_between_frames:
        _check_works(subject, [one for one in subject.others if one.id not in named])


def _check_works(subject: Subject, others: list[wire.Exchange]) -> None:
    """A request that nobody meddled with goes on to its end, and a new one is heard."""
    end = subject.end
    for exchange in others:
        [chunk] = subject.hear({1: Kind.CHUNK, 2: exchange.id, 11: 0, 14: 1, 6: b"on"})
        assert isinstance(chunk, wire.ChunkReceived)
        [ended] = subject.hear({1: Kind.STREAM_END, 2: exchange.id, 11: 0, 15: 2})
        assert isinstance(ended, wire.StreamEnded)
        [last] = subject.hear({1: Kind.END, 2: exchange.id})
        assert isinstance(last, wire.Finished if exchange.is_requester else wire.ArgumentsEnded)
    parity = 1 if end.role is Role.HOST else 0
    number = end.last_their_id + 2
    if end.last_their_id == 0:
        number = 2 - parity
    if number < 1 << 63:
        events = subject.hear({1: Kind.REQ, 2: number, 10: "cap:op=echo", 5: {"complete": True}})
        theirs = sum(not exchange.is_requester for exchange in end.exchanges.values())
        assert len(events) == 1 or theirs == end.limits.open_requests
    assert end.error is None


def _loose(body: bytes) -> Any:
    with suppress(Exception):  # whatever msgpack makes of it: it is only asked which request is meant
        return msgpack.unpackb(body, strict_map_key=False)
    return None


def _is_inside_a_request(end: wire.Connection, body: bytes) -> bool:
    """Whether the frame is right by the table and size, and is about a request: then only that one can be at fault."""
    if not _is_right(body):
        return False
    fields = decode(memoryview(body), frame=0, offset=0)
    if not end.is_greeted:
        return False
    kind = fields[1]
    return kind in _INSIDE_A_REQUEST and fields[2] != 0 and len(body) <= end.limits.frame_bytes(kind)


# -- where the search begins


def corpus() -> Iterator[bytes]:
    """What each end of the golden conversation hears, whole and frame by frame, in each state and each form."""
    for role, speaker in ((Role.HOST, "cartridge"), (Role.CARTRIDGE, "host")):
        heard = [bytes.fromhex(one["hex"]) for one in _golden() if one["from"] == speaker]
        yield from _forms(role, 0, heard)
        for state in range(1, STATES):
            lively = [part for one in heard for part in _in_state(role, one)]
            yield from _forms(role, state, lively)
            for part in lively:
                yield from islice(_forms(role, state, [part]), 2)


def _golden() -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = json.loads(GOLDEN.read_text("utf-8"))["frames"]
    return frames


def _forms(role: wire.Role, state: int, frames: list[bytes]) -> Iterator[bytes]:
    choices = (IS_CARTRIDGE if role is Role.CARTRIDGE else 0) | state << 1
    data = b"".join(frames)
    framed = b"".join(len(one[4:]).to_bytes(2, "big") + one[4:] for one in frames)
    yield bytes((choices, 128)) + data
    yield bytes((choices | IS_FRAMED, 77)) + framed
    yield bytes((choices | REACTS, 0)) + data
    yield bytes((choices | REACTS | IS_FRAMED, 0)) + framed


def _in_state(role: wire.Role, data: bytes) -> Iterator[bytes]:
    """A golden frame as it would be heard about the requests that are open in a state: 2 and 1, and new ones."""
    fields: dict[int, Any] = msgpack.unpackb(data[4:], strict_map_key=False)
    kind, about = fields[1], fields[2]
    if kind == Kind.HELLO:
        return
    if kind == Kind.REQ:
        yield frame({**fields, 2: (7 if role is Role.HOST else 8)})
    elif about == 0:
        yield data
    else:
        for number in (2, 1):
            yield frame({**fields, 2: number})
            if kind == Kind.CHUNK:
                yield frame({**fields, 2: number, 14: 1})
                yield b"".join(encode_chunk(number, 0, 1, fields[6]))
            elif kind == Kind.STREAM_END:
                yield frame({**fields, 2: number, 15: 1})
            elif kind == Kind.STREAM_START:
                yield frame({**fields, 2: number, 11: 1})
                yield b"".join(encode_whole(number, 1, b"whole"))
            elif kind == Kind.END:
                yield encode_plain_end(number)
