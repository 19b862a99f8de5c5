"""Owns the check of CANCEL: at each moment of a request, with another request open all the while."""

import secrets
from collections.abc import Callable
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import (
    IDENTITY_CAP,
    SMALL,
    Bench,
    check_identity,
    check_same,
    check_whole,
    open_identity,
)
from cartdeck_conformance.call import Call
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.sample_call import SampledCap
from cartdeck_conformance.verdict import Fault
from cartdeck_protocol.errors import Code
from cartdeck_protocol.wire.messages import cancel_frame

_REASON: Final = "the kit cancels"


def cancel(bench: Bench) -> None:
    """Identity at five moments, then each cap that works at three."""
    with bench.conversation(SMALL) as talk:
        neighbour = open_identity(talk) if bench.capacity > 1 else None
        for what, begin in _MOMENTS:
            _cancelled(bench, talk, begin(talk), what)
        late = talk.call(IDENTITY_CAP, {"data": b"x"})
        talk.finish(late)
        talk.send_raw(cancel_frame(late.exchange.id, _REASON))
        if neighbour is not None:
            neighbour.forgets_silence()
            talk.connection.open_stream(neighbour.exchange, name="data").write(b"neighbour")
            talk.connection.end(neighbour.exchange)
            talk.finish(neighbour)
            check_same(neighbour, b"neighbour", "a request that was open meanwhile")
        check_identity(talk, what="identity behind cancelled requests")
    for one in bench.working:
        _cancel_sample(bench, one)


def _before_the_first_frame(talk: Conversation) -> Call:
    return open_identity(talk)


def _behind_the_request(talk: Conversation) -> Call:
    return talk.call(IDENTITY_CAP, {"data": b"x" * 100})


def _in_the_input(talk: Conversation) -> Call:
    call = open_identity(talk)
    talk.connection.open_stream(call.exchange, name="data").write(b"half of it")
    talk.wait(lambda: call.has_begun, talk.durations.quiet_s)
    return call


def _between_two_streams(talk: Conversation) -> Call:
    call = open_identity(talk)
    stream = talk.connection.open_stream(call.exchange, name="data")
    stream.write(b"all of it")
    stream.close()
    talk.wait(lambda: call.has_begun, talk.durations.quiet_s)
    return call


def _in_the_output(talk: Conversation) -> Call:
    """It waits for credit that never comes."""
    call = open_identity(talk, takes=False)
    talk.connection.open_stream(call.exchange, name="data").write(secrets.token_bytes(64 * 1024))
    talk.connection.end(call.exchange)
    talk.wait(lambda: call.chunks >= SMALL.initial_credit, talk.durations.quiet_s * 4)
    return call


_MOMENTS: Final[tuple[tuple[str, Callable[[Conversation], Call]], ...]] = (
    ("before the first frame of its argument", _before_the_first_frame),
    ("right behind a whole request", _behind_the_request),
    ("in the middle of the input", _in_the_input),
    ("behind the input, before END", _between_two_streams),
    ("in the middle of the output, without credit", _in_the_output),
)


def _cancelled(bench: Bench, talk: Conversation, call: Call, what: str) -> None:
    call.is_cancelled = True
    talk.connection.cancel(call.exchange, _REASON)
    cancel_s = bench.durations.cancel_s
    is_over = talk.wait(lambda: call.is_over, cancel_s)
    check_whole(call, f"a CANCEL {what}")
    if not is_over and talk.is_at_end:
        raise Fault(f"a CANCEL {what} had no terminal {talk.why_not(cancel_s)}")
    if not is_over:
        bench.findings.tell(catalogue.CANCEL, f"a CANCEL {what} had no terminal within {cancel_s:g} s")
    elif call.error is not None and call.error.code is not Code.CANCELLED:
        message = f"a CANCEL {what} ended with {call.ending}; expected CANCELLED, or END where the work was done"
        bench.findings.tell(catalogue.CANCEL, message)


def _cancel_sample(bench: Bench, one: SampledCap) -> None:
    """At once, at the first sign of it, and when its output waits for credit."""
    with bench.conversation(SMALL) as talk:
        _cancelled(bench, talk, one.begin(talk), f"right behind the request of {one.alias}")
        call = one.begin(talk)
        talk.wait(lambda: call.has_begun, bench.durations.answer_s)
        _cancelled(bench, talk, call, f"at the first frame of {one.alias}")
        if not bench.is_fast or one in bench.quick:
            call = one.begin(talk, takes=False)
            talk.wait(lambda: call.chunks >= SMALL.initial_credit or call.is_over, bench.durations.quiet_s * 2)
            _cancelled(bench, talk, call, f"in the output of {one.alias}")
        check_identity(talk, what=f"identity behind cancelled calls of {one.alias}")
