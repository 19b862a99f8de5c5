"""Owns the check of bytes that break the framing: each case meets a process of its own, which must leave.

It does not know what is wrong inside one request.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import IDENTITY_CAP, Bench
from cartdeck_conformance.conversation import SOFTWARE, Conversation
from cartdeck_protocol.wire import API_VERSION, PROTOCOL_VERSION, Limits
from cartdeck_protocol.wire.frames import encode
from cartdeck_protocol.wire.limits import CHUNK_HEADROOM, MAX_CONTROL
from cartdeck_protocol.wire.messages import FEATURES

_ID: Final = 1000
Case = tuple[str, bytes]


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _meta(**fields: Any) -> bytes:
    return encode({1: 1, 2: _ID, 10: IDENTITY_CAP, 5: fields})


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _after_hello(max_chunk: int) -> list[Case]:
    """The first of them are those of a fast run."""
    request = encode({1: 1, 2: _ID, 10: IDENTITY_CAP})
    hello: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "api": API_VERSION,
        "limits": {},
        "features": sorted(FEATURES),
    }
    return [
        ("a length of 4 GiB", b"\xff\xff\xff\xff\x83\x01\x01\x02\x02"),
        ("a kind that does not exist", encode({1: 99, 2: _ID})),
        ("a key that stands twice", _framed(b"\x84\x01\x01\x02\x02\x02\x04\x0a\xa1x")),
        ("an id that is a bool", encode({1: 1, 2: True, 10: IDENTITY_CAP})),
        ("bytes behind the map", _framed(request[4:] + b"\x00")),
        ("a request with an odd id", encode({1: 1, 2: _ID + 1, 10: IDENTITY_CAP})),
        ("a second HELLO", encode({1: 0, 2: 0, 5: hello})),
        ("a length of 0", b"\0\0\0\0"),
        ("a length of 3", b"\0\0\0\3\x82\x01\x03"),
        ("a control frame above the limit", struct.pack(">I", MAX_CONTROL + 1) + request[4:]),
        (
            "a CHUNK above the limit",
            struct.pack(">I", max_chunk + CHUNK_HEADROOM + 1) + b"\x85\x01\x03\x02\x02\x0b\x00",
        ),
        ("an array instead of a map", _framed(b"\x95\x01\x01\x02\x02\x03")),
        ("no msgpack at all", _framed(b"\xc1\xc1\xc1\xc1\xc1\xc1")),
        ("a reserved kind", encode({1: 2, 2: _ID})),
        ("a kind that is not the first key", _framed(b"\x83\x02\x02\x01\x01\x0a\xa1x")),
        ("a key that is text", encode({1: 1, 2: _ID, 10: IDENTITY_CAP, "x": 1})),  # pyright: ignore[reportArgumentType]  # it is wrong on purpose
        ("a negative id", encode({1: 1, 2: -2, 10: IDENTITY_CAP})),
        ("an id that is a float", encode({1: 1, 2: 2.0, 10: IDENTITY_CAP})),
        ("a request without a cap", encode({1: 1, 2: _ID})),
        ("a cap that is no text", encode({1: 1, 2: _ID, 10: 5})),
        ("a meta key that is no text", encode({1: 1, 2: _ID, 10: IDENTITY_CAP, 5: {1: 2}})),
        ("a meta that is too deep", _meta(deep=_nested(20))),
        ("an extension type", _framed(b"\x84\x01\x01\x02\x02\x0a\xa1x\x05\x81\xa1x\xd4\x01\x00")),
        ("the id of an earlier request", encode({1: 1, 2: _ID, 10: "cap:x"}) + encode({1: 1, 2: _ID - 2, 10: "cap:x"})),
        ("a CHUNK of the connection itself", encode({1: 3, 2: 0, 11: 0, 14: 0, 6: b"x"})),
    ]


def _before_hello() -> list[Case]:
    good = {"protocol": PROTOCOL_VERSION, "api": API_VERSION, "features": sorted(FEATURES), "software": SOFTWARE}
    return [
        ("a request as the first frame", encode({1: 1, 2: 2, 10: IDENTITY_CAP})),
        ("limits out of bounds", encode({1: 0, 2: 0, 5: {**good, "limits": {**Limits().to_wire(), "max_chunk": 1}}})),
        ("a HELLO without limits", encode({1: 0, 2: 0, 5: good})),
    ]


_FAST_CASES: Final = 7


def broken_connection(bench: Bench) -> None:
    """After each case a good request follows: it must not be answered."""
    with bench.conversation() as talk:
        max_chunk = talk.connection.max_chunk
    after, before = _after_hello(max_chunk), _before_hello()
    if bench.is_fast:
        after, before = after[:_FAST_CASES], before[:1]
    for what, data in after:
        _meet(bench, what, lambda talk, data=data: (talk.greet(), talk.send_raw(data)))
    for what, data in before:
        _meet(bench, what, lambda talk, data=data: talk.send_raw(data))
    _cut(bench)


def _meet(bench: Bench, what: str, speak: Callable[[Conversation], object]) -> None:
    tell, exit_s = bench.findings.tell, bench.durations.exit_s
    with Conversation(bench.setup) as talk:
        talk.watch.is_deaf = True
        speak(talk)
        probe = encode({1: 1, 2: 2 * _ID, 10: IDENTITY_CAP, 5: {"arguments": {"data": b"x"}, "complete": True}})
        talk.send_raw(probe)
        answered = talk.watch.answered
        talk.wait(lambda: 2 * _ID in answered, exit_s)
        if 2 * _ID in answered:
            tell(catalogue.BROKEN_CONNECTION, f"{what}: it went on, and answered the next request")
        elif not talk.is_at_end or not talk.process.wait(exit_s):
            tell(catalogue.BROKEN_CONNECTION, f"{what}: it had not left after {exit_s:g} s")
        elif (talk.process.returncode or 0) < 0:
            tell(catalogue.BROKEN_CONNECTION, f"{what}: the process {talk.process.exit_text}{talk.process.log_tail}")


def _cut(bench: Bench) -> None:
    """Half a frame, then the end of stdin."""
    with Conversation(bench.setup) as talk:
        talk.greet()
        talk.send_raw(b"\0\0\1\0\x84\x01\x01")
        talk.wait(lambda: not talk.is_writing, bench.durations.answer_s)
        talk.process.close_stdin()
        if not talk.process.wait(bench.durations.exit_s):
            message = f"half a frame and the end of stdin: it had not left after {bench.durations.exit_s:g} s"
            bench.findings.tell(catalogue.BROKEN_CONNECTION, message)
        elif (talk.process.returncode or 0) < 0:
            bench.findings.tell(catalogue.BROKEN_CONNECTION, f"half a frame: the process {talk.process.exit_text}")
