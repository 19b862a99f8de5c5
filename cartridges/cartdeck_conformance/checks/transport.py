"""Owns the checks of bytes under way: cut anywhere, megabytes of them, with much credit and with little."""

import random
import secrets
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import (
    DISCARD_CAP,
    IDENTITY_CAP,
    SMALL,
    Bench,
    check_identity,
    check_same,
    check_whole,
    open_identity,
)  # fmt: skip  # a list to scan
from cartdeck_conformance.call import Call
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.sample_call import SampledCap
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.wire import Limits

MIB: Final = 1024 * 1024
_SEED: Final = 8
_MERGED: Final = 40
_MOST_WINDOW: Final = 4096


def split(bench: Bench) -> None:
    """One byte at a time, many frames at once, and cut by chance."""
    chance = random.Random(_SEED)  # noqa: S311  # the same cuts each time
    for how, next_write in (
        ("one byte at a time", lambda: 1),
        ("cut by chance", lambda: chance.randint(1, 60)),
    ):
        with bench.conversation(next_write=next_write) as talk:
            check_identity(talk, what=f"identity, {how}")
            pieces = [secrets.token_bytes(size) for size in (1, 300, 40)]
            call = _stream_in(talk, pieces)
            talk.finish(call)
            check_same(call, b"".join(pieces), f"identity of chunks, {how}")
    with bench.conversation() as talk:
        calls = [(talk.call(IDENTITY_CAP, {"data": data}), data) for data in map(secrets.token_bytes, range(_MERGED))]
        for call, data in calls:
            talk.finish(call)
            check_same(call, data, f"identity, one of {_MERGED} in one write")


def _stream_in(talk: Conversation, pieces: list[bytes], cap: str = IDENTITY_CAP, *, takes: bool = True) -> Call:
    """A request whose argument comes in chunks, one for each piece."""
    call = talk.open(cap, takes=takes)
    stream = talk.connection.open_stream(call.exchange, name="data")
    stream.is_merged = False
    for piece in pieces:
        stream.write(piece)
    talk.connection.end(call.exchange)
    return call


def big(bench: Bench) -> None:
    """Megabytes through identity and into discard, both ways at once."""
    size = 2 * MIB if bench.is_fast else 16 * MIB
    data = random.Random(_SEED).randbytes(size)  # noqa: S311  # any bytes do
    with bench.conversation() as talk:
        echoed = _send_big(talk, IDENTITY_CAP, data)
        if bench.capacity == 1:
            talk.finish(echoed, bench.durations.answer_s * 2)
        eaten = _send_big(talk, DISCARD_CAP, data)
        talk.finish(echoed, bench.durations.answer_s * 2)
        talk.finish(eaten, bench.durations.answer_s * 2)
        check_whole(echoed, "identity of megabytes")
        if not echoed.is_finished or echoed.main != data:
            raise Fault(f"identity of {size} bytes ended with {echoed.ending} and gave back {len(echoed.main)}")
        check_same(eaten, b"", "discard of megabytes")
        bench.figures["identity_bytes_per_s"] = size / echoed.took_s
        check_identity(talk, what="identity behind megabytes")


def _send_big(talk: Conversation, cap: str, data: bytes) -> Call:
    call = talk.open(cap)
    talk.connection.open_stream(call.exchange, name="data").write(data)
    talk.connection.end(call.exchange)
    return call


def credit_kept(bench: Bench) -> None:
    """A host that accepts two chunks of 1 KiB and grants nothing: no third may come. Then all of it."""
    if bench.findings.faults.get(catalogue.CREDIT_GIVEN.number):
        raise NotExercised(f"what it is sent does not arrive, which {catalogue.CREDIT_GIVEN} says")
    data = secrets.token_bytes(24 * 1024)
    with bench.conversation(SMALL) as talk:
        call = open_identity(talk, takes=False)
        talk.connection.open_stream(call.exchange, name="data").write(data)
        talk.connection.end(call.exchange)
        talk.wait(lambda: call.chunks >= SMALL.initial_credit or call.is_over, bench.durations.answer_s)
        talk.listen(bench.durations.quiet_s)
        check_whole(call, "identity without credit")
        if bench.capacity > 1:
            check_identity(talk, what="identity beside one that waits for credit")
        call.release()
        talk.finish(call)
        check_same(call, data, "identity with little credit")
    _samples_with_little_credit(bench)


def _samples_with_little_credit(bench: Bench) -> None:
    caps = bench.quick if bench.is_fast else bench.working
    for instance in sorted({one.instance for one in caps}):
        _with_little_credit(bench, [one for one in caps if one.instance == instance])


def _with_little_credit(bench: Bench, caps: list[SampledCap]) -> None:
    with bench.conversation(Limits(max_chunk=1024, initial_credit=1)) as talk:
        for one in caps:
            call = one.begin(talk)
            talk.finish(call, bench.durations.sample_s)
            check_whole(call, f"{one.alias} with little credit")
            if not call.is_finished:
                raise Fault(f"{one.alias} with little credit ended with {call.ending}")


def credit_given(bench: Bench) -> None:
    """More chunks than its window holds, into both universal caps."""
    with bench.conversation() as talk:
        window = talk.connection.their_limits.initial_credit
        if window > _MOST_WINDOW:
            raise NotExercised(f"it grants {window} chunks from the start")
        pieces = [bytes((index % 256,)) for index in range(4 * window + 3)]
        for cap, expected in ((DISCARD_CAP, b""), (IDENTITY_CAP, b"".join(pieces))):
            call = _stream_in(talk, pieces, cap)
            if not talk.wait(lambda call=call: call.is_over, bench.durations.answer_s):
                granted = talk.watch.granted.get(call.exchange.id, 0)
                raise Fault(
                    f"{cap}: {len(pieces)} chunks did not arrive {talk.why_not(bench.durations.answer_s)}; it accepts "
                    f"{window} at first and granted {granted} more"
                )
            check_same(call, expected, cap)
        if window > 1:
            _owed(talk, window)


def _owed(talk: Conversation, window: int) -> None:
    """What it owes before it waits: half a window at least."""
    call = open_identity(talk)
    stream = talk.connection.open_stream(call.exchange, name="data")
    stream.is_merged = False
    for _ in range(window):
        stream.write(b"x")
    number = call.exchange.id
    if not talk.wait(lambda: talk.watch.granted.get(number, 0) >= window // 2, talk.durations.answer_s):
        granted = talk.watch.granted.get(number, 0)
        raise Fault(f"after {window} chunks it has granted {granted}, and waits for more; expected {window // 2}")
    talk.connection.end(call.exchange)
    talk.finish(call)
