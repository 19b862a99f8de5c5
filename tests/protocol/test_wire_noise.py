"""Bytes and frames at random: they give events or the end of the connection, and nothing is ever raised."""

from itertools import pairwise
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol import wire
from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.wire.kinds import KEYS, META, TYPES

Kind, Role = wire.Kind, wire.Role
EVENTS = get_args(wire.Event)
ENDINGS = {Code.PROTOCOL_VIOLATION, Code.FRAME_TOO_LARGE, Code.VERSION_MISMATCH}


def listen(end: wire.Connection, data: bytes, cuts: list[int] = []) -> list[Any]:  # noqa: B006  # never changed
    """All events, each checked: of a known type, none behind the end of the connection, and answers that are frames."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [event for begin, stop in pairwise(edges) for event in end.receive(data[begin:stop])]
    assert all(type(event) in EVENTS for event in found)
    damaged = [event for event in found if isinstance(event, wire.ConnectionDamaged)]
    assert damaged == ([] if end.error is None else found[-1:])
    assert all(event.error.code in ENDINGS for event in damaged)
    answers = b"".join(end.outgoing())
    while answers:
        size = int.from_bytes(answers[:4], "big")
        assert msgpack.unpackb(answers[4 : 4 + size], strict_map_key=False)[1] in KEYS
        answers = answers[4 + size :]
    return found


def greeted(play: Any, role: Role) -> wire.Connection:
    """An end in the middle of things: requests both ways, streams open both ways, one cancelled."""
    played = play(role, max_chunk=1024, initial_credit=2, streams_per_request=3, open_requests=6)
    for asks in (True, False):
        for _ in range(2):
            exchange = played.opened(asks=asks)
            played.end.open_stream(exchange).write(b"own")
            played.hear({1: 8, 2: exchange.id, 11: 0})
    cancelled = played.opened(asks=True)
    played.end.cancel(cancelled)
    played.said()
    return played.end


def recording(role: Role) -> bytes:
    """What an end of this role hears in an ordinary life."""
    host, cartridge = wire.Connection(Role.HOST), wire.Connection(Role.CARTRIDGE, manifest=b"{}")
    heard = {Role.HOST: b"", Role.CARTRIDGE: b""}
    events: list[Any] = []

    def carry() -> None:
        for source, target in ((host, cartridge), (cartridge, host)):
            data = b"".join(source.outgoing())
            heard[target.role] += data
            events.extend(target.receive(data))

    host.send_hello()
    carry()
    for number in range(3):
        own = host.request("cap:echo", {"n": b"1"}, complete=False)
        stream = host.open_stream(own, name="data", media="media:")
        stream.write(b"abc" * 10)
        carry()
        stream.write(bytes(300))
        carry()
        host.end(own)
        carry()
        theirs = next(
            one.exchange for one in events if isinstance(one, wire.RequestReceived) and one.exchange.id == own.id
        )
        cartridge.log(theirs, "progress", "half", progress=0.5, phase="work", work=1, total=2)
        peer = cartridge.request("cap:peer", {"a": b"2"}, parent=theirs)
        out = cartridge.open_stream(theirs, is_sequence=True)
        out.write(wire.encode_item({"a": [1]}))
        carry()
        if number == 0:
            cartridge.end(theirs, provenance={"seed": 7})
        elif number == 1:
            host.cancel(own, "enough")
            cartridge.cancel(peer, "enough")
        else:
            cartridge.fail(theirs, failure(Code.OUT_OF_MEMORY, "no room", details={"need": 5}))
        carry()
    heard[Role.HOST] += wire.encode_heartbeat(rss_bytes=1, open_requests=1, stragglers=0, strays=0)
    return heard[role]


RECORDINGS = {role: recording(role) for role in Role}


def hearer(role: Role) -> wire.Connection:
    """An end that has asked what the recording answers."""
    end = wire.Connection(role, manifest=b"{}")
    if role is Role.HOST:
        end.send_hello()
        for _ in range(3):
            end.open_stream(end.request("cap:echo", complete=False)).write(b"x")
    return end


@pytest.mark.parametrize("role", Role)
def test_the_recordings_are_right_as_they_are(role: Role) -> None:
    found = listen(hearer(role), RECORDINGS[role])
    assert len(found) > 15
    assert not [one for one in found if isinstance(one, wire.ConnectionDamaged | wire.ExchangeDamaged)]


@pytest.mark.parametrize("role", Role)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=3))
def test_bytes_at_random(play: Any, role: Role, data: bytes, cuts: list[int]) -> None:
    listen(wire.Connection(role), data, cuts)
    listen(greeted(play, role), data, cuts)


@pytest.mark.parametrize("role", Role)
@settings(max_examples=120, deadline=None)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["flip", "set", "drop", "add", "repeat", "swap"]),
            st.integers(0, 1 << 16),
            st.integers(0, 255),
            st.integers(1, 60),
        ),
        min_size=1,
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=3),
)
def test_a_right_recording_with_some_bytes_changed(role: Role, changes: list[Any], cuts: list[int]) -> None:
    data = bytearray(RECORDINGS[role])
    for what, at, byte, size in changes:
        at %= len(data)  # noqa: PLW2901  # a place in what is left
        if what == "flip":
            data[at] ^= 1 << byte % 8
        elif what == "set":
            data[at] = byte
        elif what == "drop":
            del data[at : at + size]
        elif what == "add":
            data[at:at] = bytes((byte,)) * size
        elif what == "repeat":
            data[at:at] = data[at : at + size]
        else:
            data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
    listen(hearer(role), bytes(data), cuts)


@pytest.mark.parametrize("role", Role)
@settings(max_examples=60, deadline=None)
@given(order=st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_right_frames_in_a_wrong_order(frames_in: Any, frame: Any, role: Role, order: list[int]) -> None:
    frames = frames_in(RECORDINGS[role])
    listen(hearer(role), b"".join(frame(frames[n % len(frames)]) for n in [0, *order]))


WRONG = st.sampled_from([None, True, -1, 1 << 40, 1.5, "text", b"bytes", [], {}, float("nan"), "", 1 << 63])
VALUES: dict[type, Any] = {
    int: st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 16, 1 << 31, 1 << 62]),
    str: st.sampled_from(["", "a", "cap:x", "media:", "info", "CANCELLED"]),
    bytes: st.sampled_from([b"", b"x", bytes(1024), bytes(1025)]),
    bool: st.booleans(),
    list: st.just(["a"]),
    dict: st.dictionaries(st.sampled_from(["a", "b", "limits"]), WRONG, max_size=2),
}


def metas(kind: int) -> Any:
    fields = {name: VALUES[types[0]] for name, (types, _) in META[kind].items()}
    required = {name: fields.pop(name) for name, (_, is_required) in META[kind].items() if is_required}
    return st.fixed_dictionaries(required, optional=fields)


@st.composite
def nearly_right_frames(draw: Any) -> dict[int, Any]:
    """Mostly what the table allows, now and then not; ids that are open, over, and unknown."""
    kind = draw(st.sampled_from(list(Kind)[1:]))
    required, allowed = KEYS[kind]
    fields: dict[int, Any] = {1: int(kind), 2: draw(st.integers(0, 12))}
    for key in (*required[2:], *(key for key in allowed if draw(st.booleans()))):
        fields[int(key)] = draw(metas(kind) if key == wire.Key.META else VALUES[TYPES[key]])
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.sampled_from([2, *fields]))] = draw(WRONG)
    if isinstance(fields.get(5), dict) and draw(st.integers(0, 9)) == 0:
        fields[5] = {**fields[5], draw(st.sampled_from(list(META[kind]))): draw(WRONG)}
    return fields


@pytest.mark.parametrize("role", Role)
@settings(max_examples=80, deadline=None)
@given(frames=st.lists(nearly_right_frames(), max_size=12), cuts=st.lists(st.integers(0, 2000), max_size=2))
def test_frames_that_are_nearly_right(
    play: Any, frame: Any, role: Role, frames: list[dict[int, Any]], cuts: list[int]
) -> None:
    end = greeted(play, role)
    listen(end, b"".join(map(frame, frames)), cuts)
    for exchange in tuple(end.exchanges.values()):  # whatever they were told, the commands still work
        if exchange.is_requester:
            end.cancel(exchange)
        else:
            end.end(exchange)
    end.outgoing()
    assert all(one.is_requester for one in end.exchanges.values())
