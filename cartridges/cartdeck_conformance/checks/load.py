"""Owns the checks of many requests: at once, more than its capacity, and one after another for ever."""

import secrets
from typing import Final

from cartdeck_conformance.bench import IDENTITY_CAP, Bench, check_identity, check_same, check_whole, open_identity
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.sample_call import SampledCap
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.errors import Code, ErrorClass

_MOST_AT_ONCE: Final = 64
_FAST_AT_ONCE: Final = 8
_SAMPLES_AT_ONCE: Final = 4
_OVER: Final = 16
_CALLS: Final = 1000
_FAST_CALLS: Final = 200
_CALL_BYTES: Final = 2048
_LIVELY_S: Final = 0.02
_MORE_FILES: Final = 8


def concurrent(bench: Bench) -> None:
    """All are open before the first is complete, and they are completed from the last to the first."""
    count = min(bench.capacity, _FAST_AT_ONCE if bench.is_fast else _MOST_AT_ONCE)
    with bench.conversation() as talk:
        opened = [(open_identity(talk), secrets.token_bytes(700)) for _ in range(count)]
        streams = [talk.connection.open_stream(call.exchange, name="data") for call, _ in opened]
        for part in range(2):
            for stream, (_, data) in zip(streams, opened, strict=True):
                stream.write(data[350 * part : 350 * (part + 1)])
            talk.wait(lambda: not talk.is_writing, bench.durations.answer_s)
        for call, data in reversed(opened):
            talk.connection.end(call.exchange)
            talk.finish(call)
            check_same(call, data, f"identity, one of {count} at once")
        bench.figures["at_once"] = count
        for one in bench.quick[:1]:
            _samples_at_once(bench, talk, one)


def _samples_at_once(bench: Bench, talk: Conversation, one: SampledCap) -> None:
    calls = [one.begin(talk) for _ in range(min(bench.capacity, _SAMPLES_AT_ONCE))]
    for call in calls:
        talk.finish(call, bench.durations.sample_s)
        check_whole(call, one.alias)
        if not call.is_finished:
            raise Fault(f"{one.alias}, one of {len(calls)} at once, ended with {call.ending}")


def overflow(bench: Bench) -> None:
    """So many more than its capacity in one write; each has an end."""
    count = bench.capacity + _OVER
    with bench.conversation() as talk:
        if count > talk.connection.their_limits.open_requests:
            count = talk.connection.their_limits.open_requests + 1
        calls = [(talk.call(IDENTITY_CAP, {"data": data}), data) for data in map(secrets.token_bytes, [16] * count)]
        refused = 0
        for call, data in calls:
            talk.finish(call)
            check_whole(call, "identity beyond the capacity")
            if call.error is None:
                check_same(call, data, f"identity, one of {count} at once")
            elif call.error.error_class is not ErrorClass.RESOURCE:
                raise Fault(f"one of {count} requests at once ended with {call.ending}; expected {Code.QUEUE_FULL}")
            else:
                refused += 1
        bench.figures["refused_of_overflow"] = refused
        check_identity(talk, what="identity behind the overflow")


def memory(bench: Bench) -> None:
    """A tenth of the calls first, to warm up; then the size and the open files, and again after all of them."""
    count = _FAST_CALLS if bench.is_fast else _CALLS
    lively = [one for one in bench.quick if (one.took_s or 1.0) < _LIVELY_S]
    lively = [one for one in lively if one.instance == lively[0].instance]
    with bench.conversation() as talk:
        _many(talk, count // 10, lively)
        before, files_before = _size(talk), talk.process.open_files()
        if before is None:
            raise NotExercised("this system does not tell how large a process is, and HEARTBEAT does not either")
        _many(talk, count, lively)
        after, files_after = _size(talk), talk.process.open_files()
        assert after is not None
        bench.figures |= {"rss_bytes": after, "rss_growth_bytes": after - before}
        most = bench.durations.memory_growth_bytes
        if after - before > most:
            grown = (after - before) / 1e6
            raise Fault(f"after {count} calls it is {grown:.1f} MB larger; at most {most / 1e6:.1f} MB are well")
        if files_before is not None and files_after is not None and files_after > files_before + _MORE_FILES:
            raise Fault(f"after {count} calls it has {files_after} open files; there were {files_before} before")


def _many(talk: Conversation, count: int, lively: list[SampledCap]) -> None:
    data = secrets.token_bytes(_CALL_BYTES)
    for index in range(count):
        check_identity(talk, data)
        if lively:
            call = lively[index % len(lively)].begin(talk)
            talk.finish(call)
            check_whole(call, call.cap)


def _size(talk: Conversation) -> int | None:
    beats = [beat["rss_bytes"] for beat in talk.watch.beats[-1:] if isinstance(beat.get("rss_bytes"), int)]
    told = [size for size in (talk.process.rss_bytes(), *beats) if size is not None]
    return max(told, default=None)
