"""Owns the checks of what every cartridge serves and says: identity, discard, the refusal of other caps, heartbeats."""

import secrets
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import DISCARD_CAP, Bench, check_identity, check_same, error_of, open_identity
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.verdict import Fault
from cartdeck_protocol.errors import Code, ErrorClass

_UNKNOWN: Final = 'cap:in="media:enc=utf-8";no-cartridge-serves-this;out="media:enc=utf-8"'
_BEATS: Final = 3


def identity(bench: Bench) -> None:
    """The four ways that its argument may take."""
    with bench.conversation() as talk:
        check_identity(talk, what="identity with its argument in the request")
        check_identity(talk, b"", "identity of nothing")
        for name, pieces in (
            ("as a whole stream", [secrets.token_bytes(300)]),
            ("in three chunks", [secrets.token_bytes(size) for size in (700, 1, 5000)]),
        ):
            call = open_identity(talk)
            send_chunks(talk, call.exchange.id, pieces, is_whole=len(pieces) == 1)
            talk.finish(call)
            check_same(call, b"".join(pieces), f"identity of an argument {name}")


def discard(bench: Bench) -> None:
    with bench.conversation() as talk:
        for pieces in ([secrets.token_bytes(2000)], [secrets.token_bytes(900)] * 3):
            call = talk.open(DISCARD_CAP)
            send_chunks(talk, call.exchange.id, pieces, is_whole=len(pieces) == 1)
            talk.finish(call)
            if call.main:
                raise Fault(f"discard gave {len(call.main)} bytes; expected none")
            check_same(call, b"", "discard")


def send_chunks(talk: Conversation, number: int, pieces: list[bytes], *, is_whole: bool) -> None:
    """The argument `data` of a request, whole or each piece a CHUNK of its own; and END."""
    exchange = talk.connection.exchanges[number]
    stream = talk.connection.open_stream(exchange, name="data")
    stream.is_merged = is_whole
    for piece in pieces:
        stream.write(piece)
    talk.connection.end(exchange)


def unknown_cap(bench: Bench) -> None:
    """Refused, whether it is a URN or not; and the process goes on."""
    with bench.conversation() as talk:
        call = talk.call(_UNKNOWN, {"text": b"x"})
        talk.finish(call)
        error = error_of(call)
        if error.code is not Code.NO_SUCH_CAP:
            raise Fault(f"a cap that it does not serve ended with {call.ending}; expected NO_SUCH_CAP")
        call = talk.call("no cap at all")
        talk.finish(call)
        if error_of(call).error_class is not ErrorClass.INPUT:
            raise Fault(f"what is no cap URN ended with {call.ending}; expected NO_SUCH_CAP")
        streamed = talk.open(_UNKNOWN)
        send_chunks(talk, streamed.exchange.id, [b"x" * 100, b"y" * 100], is_whole=False)
        talk.finish(streamed)
        check_identity(talk, what="identity behind an unknown cap")


def heartbeat(bench: Bench) -> None:
    """While nothing is asked, and while a request is open."""
    durations = bench.durations
    with bench.conversation() as talk:
        limit_s = durations.answer_s + _BEATS * durations.heartbeat_s
        watch = talk.watch
        talk.until(lambda: len(watch.beats) >= _BEATS, limit_s, f"{_BEATS} HEARTBEATs")
        gaps = [after - before for before, after in zip(watch.beat_times_s, watch.beat_times_s[1:], strict=False)]
        bench.figures["heartbeat_s"] = sum(gaps) / len(gaps)
        if min(gaps) > max(4 * durations.heartbeat_s, 1.0):
            raise Fault(f"a HEARTBEAT comes each {min(gaps):.1f} s; CARTDECK_HEARTBEAT_S was {durations.heartbeat_s:g}")
        call = open_identity(talk)
        seen = len(watch.beats)
        talk.until(lambda: len(watch.beats) >= seen + 2, limit_s, "HEARTBEAT while a request is open")
        counted = watch.beats[-1].get("open_requests")
        if counted not in (None, 1):
            raise Fault(f"HEARTBEAT counts {counted} open requests while 1 is open")
        talk.connection.end(call.exchange)
        talk.wait(lambda: call.is_over, durations.answer_s)
        rss = watch.beats[-1].get("rss_bytes")
        if rss is None:
            bench.findings.note(catalogue.HEARTBEAT, "rss_bytes was not exercised: HEARTBEAT does not say it")
        elif rss <= 0:
            raise Fault(f"HEARTBEAT says {rss} bytes of memory")
