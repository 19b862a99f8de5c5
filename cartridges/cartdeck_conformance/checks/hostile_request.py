"""Owns the checks of what is wrong inside one request, and of frames for requests that are over or never were.

Each case breaks one law in a request of its own; the process and another request must go on.
"""

from collections.abc import Callable
from typing import Any, Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import IDENTITY_CAP, Bench, check_identity, check_same, open_identity
from cartdeck_conformance.call import Call
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.verdict import Fault
from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire import Kind
from cartdeck_protocol.wire.frames import encode

Break = Callable[[Conversation, int], bytes]
_KEYS: Final = {
    "meta": 5, "payload": 6, "cap": 10, "stream": 11, "media": 12, "index": 14, "count": 15, "credit": 19, "name": 21,
}  # fmt: skip  # a list to scan
_MOST_WINDOW: Final = 4096


def frame(kind: Kind, number: int, **fields: Any) -> bytes:
    return encode({1: int(kind), 2: number} | {_KEYS[name]: value for name, value in fields.items()})


def _start(number: int, stream: int = 0, **fields: Any) -> bytes:
    return frame(Kind.STREAM_START, number, stream=stream, **{"name": "data", **fields})


def _chunk(number: int, index: int, payload: bytes = b"x", stream: int = 0) -> bytes:
    return frame(Kind.CHUNK, number, stream=stream, index=index, payload=payload)


_VIOLATION: Final = Code.PROTOCOL_VIOLATION
_IN_A_REQUEST: Final[tuple[tuple[str, Code, Break], ...]] = (
    ("a CHUNK of a stream that was never opened", _VIOLATION, lambda _, id: _chunk(id, 0)),
    ("a second STREAM_START", _VIOLATION, lambda _, id: _start(id) + _start(id)),
    ("a stream that is not the next number", _VIOLATION, lambda _, id: _start(id, 1)),
    ("a chunk_index that is not the next", _VIOLATION, lambda _, id: _start(id) + _chunk(id, 5)),
    (
        "a chunk_count that is not what came",
        _VIOLATION,
        lambda _, id: _start(id) + _chunk(id, 0) + frame(Kind.STREAM_END, id, stream=0, count=9),
    ),
    (
        "a CHUNK behind the end of its stream",
        _VIOLATION,
        lambda _, id: _start(id) + frame(Kind.STREAM_END, id, stream=0, count=0) + _chunk(id, 0),
    ),
    ("an END with an open stream", _VIOLATION, lambda _, id: _start(id) + frame(Kind.END, id)),
    ("a LOG of the requester", _VIOLATION, lambda _, id: frame(Kind.LOG, id, meta={"level": "info", "message": "x"})),
    (
        "an ERR of the requester",
        _VIOLATION,
        lambda _, id: frame(Kind.ERR, id, meta={"code": "INTERNAL", "class": "internal", "message": "x"}),
    ),
    ("a CANCEL whose reason is a number", _VIOLATION, lambda _, id: frame(Kind.CANCEL, id, meta={"reason": 5})),
    (
        "CREDIT for a stream that was never opened",
        _VIOLATION,
        lambda _, id: frame(Kind.CREDIT, id, stream=50, credit=1),
    ),
    ("a name that is too long", Code.FRAME_TOO_LARGE, lambda _, id: _start(id, name="n" * 961)),
    (
        "a payload above max_chunk",
        Code.FRAME_TOO_LARGE,
        lambda talk, id: _start(id) + _chunk(id, 0, b"x" * (talk.connection.max_chunk + 1)),
    ),
)


def broken_request(bench: Bench) -> None:
    """Each case with a neighbour that is open all the while."""
    with bench.conversation() as talk:
        neighbour = open_identity(talk) if bench.capacity > 1 else None
        for what, code, spoil in _IN_A_REQUEST:
            call = _open_spoilt(talk)
            talk.send_raw(spoil(talk, call.exchange.id))
            _must_fail(bench, talk, call, (what, code))
        for what, code, meta in (
            ("a `complete` that is a number", _VIOLATION, {"complete": 5}),
            ("an argument that is text", _VIOLATION, {"arguments": {"data": "text"}, "complete": True}),
            ("arguments above the limit", Code.FRAME_TOO_LARGE, _too_many(talk)),
        ):
            call = _open_spoilt(talk)  # the connection takes note of the id; the frame itself is ours
            _replace_request(talk, call.exchange.id, meta)
            _must_fail(bench, talk, call, (what, code))
        _beyond_window(bench, talk)
        if neighbour is not None:
            neighbour.forgets_silence()
            talk.connection.open_stream(neighbour.exchange, name="data").write(b"neighbour")
            talk.connection.end(neighbour.exchange)
            talk.finish(neighbour)
            check_same(neighbour, b"neighbour", "a request that was open meanwhile")
        check_identity(talk, what="identity behind broken requests")


def _open_spoilt(talk: Conversation, *, takes: bool = True) -> Call:
    """A request whose streams the connection knows nothing of: CREDIT for them is late to it, not damage."""
    call = open_identity(talk, takes=takes)
    call.exchange.next_stream = 1 << 20
    return call


def _too_many(talk: Conversation) -> dict[str, Any]:
    size = talk.connection.their_limits.inline_arguments + 1
    return {"arguments": {"data": b"x" * size}, "complete": True}


def _replace_request(talk: Conversation, number: int, meta: dict[str, Any]) -> None:
    talk.connection.outgoing()  # the good REQ, which is not sent
    talk.send_raw(frame(Kind.REQ, number, cap=IDENTITY_CAP, meta=meta))


def _must_fail(bench: Bench, talk: Conversation, call: Call, expected: tuple[str, Code]) -> None:
    what, code = expected
    is_over = talk.wait(lambda: call.is_over, bench.durations.answer_s)
    if not is_over and talk.is_at_end:
        raise Fault(f"{what} ended the connection {talk.why_not(0)}; expected ERR {code} for that request alone")
    if call.error is None or call.error.code is not code:
        message = f"{what}: {call.ending if is_over else talk.why_not(bench.durations.answer_s)}; expected ERR {code}"
        bench.findings.tell(catalogue.BROKEN_REQUEST, message)
        if not is_over:
            talk.connection.cancel(call.exchange)


def _beyond_window(bench: Bench, talk: Conversation) -> None:
    """Many more CHUNKs than there is credit for, in one write. Where so much was granted meanwhile, it is no breach."""
    window = talk.connection.their_limits.initial_credit
    if window > _MOST_WINDOW:
        bench.findings.note(catalogue.BROKEN_REQUEST, f"CHUNKs without credit were not exercised: it grants {window}")
        return
    call = _open_spoilt(talk, takes=False)
    number, count = call.exchange.id, 16 * window + 16
    talk.send_raw(_start(number) + b"".join(_chunk(number, index) for index in range(count)))
    talk.wait(lambda: call.is_over or talk.watch.granted.get(number, 0) >= count, bench.durations.answer_s)
    granted = window + talk.watch.granted.get(number, 0)
    if not call.is_over and granted < count:
        message = f"{count} CHUNKs with credit for {granted} were taken; expected ERR {Code.CREDIT_VIOLATION}"
        bench.findings.tell(catalogue.BROKEN_REQUEST, message)
    if call.error is not None and call.error.code is not Code.CREDIT_VIOLATION:
        message = f"CHUNKs without credit: {call.ending}; expected ERR {Code.CREDIT_VIOLATION}"
        bench.findings.tell(catalogue.BROKEN_REQUEST, message)
    talk.connection.cancel(call.exchange)
    talk.wait(lambda: call.is_over, bench.durations.cancel_s)


def late_frames(bench: Bench) -> None:
    """Late ones are normal; stragglers and strays are counted in HEARTBEAT."""
    with bench.conversation() as talk:
        call = talk.call(IDENTITY_CAP, {"data": b"first"})
        talk.finish(call)
        number = call.exchange.id
        beyond = number + 2000
        talk.watch.is_deaf = True
        talk.send_raw(
            frame(Kind.CREDIT, number, stream=0, credit=1)
            + frame(Kind.CANCEL, number, meta={"reason": "too late"})
            + _chunk(number, 0)
            + frame(Kind.END, beyond)
        )
        check_identity(talk, what="identity behind late frames")
        talk.listen(bench.durations.quiet_s)
        says_more = catalogue.TERMINALS.number in bench.findings.faults  # of every request, which is told there
        if (talk.connection.stragglers or talk.connection.strays) and not says_more:
            raise Fault("it answered frames for requests that were not open")
        seen = len(talk.watch.beats)
        talk.until(lambda: len(talk.watch.beats) > seen + 1, bench.durations.answer_s, "HEARTBEAT")
        beat = talk.watch.beats[-1]
        for name, what in (("stragglers", "a CHUNK for a request that was over"), ("strays", "an END for no request")):
            if beat.get(name, 0) != 1:
                bench.findings.tell(
                    catalogue.LATE_FRAMES, f"HEARTBEAT counts {beat.get(name, 0)} {name} after {what}; expected 1"
                )
