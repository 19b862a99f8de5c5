"""Owns the checks of a cartridge's own caps: their samples, the form of their outputs, and wrong arguments."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import Bench, check_whole
from cartdeck_conformance.call import Call, Received
from cartdeck_conformance.conversation import Conversation
from cartdeck_conformance.durations import Durations
from cartdeck_conformance.sample_call import SampledCap, begin_call
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.caps import (
    ArgumentDefinition,
    CapDefinition,
    MediaUrn,
    OutputDefinition,
    ValueKind,
    decode_value,
)
from cartdeck_protocol.caps.argument import kind_of
from cartdeck_protocol.errors import CartdeckError, ErrorClass
from cartdeck_protocol.wire import ItemDecoder

_RECORD: Final = MediaUrn.parse("media:record")
_MAY_BE_EMPTY: Final = (ValueKind.BYTES, ValueKind.TEXT)
_ITEMS: Final[dict[ValueKind, type | tuple[type, ...]]] = {
    ValueKind.TEXT: str,
    ValueKind.INTEGER: int,
    ValueKind.NUMBER: (int, float),
    ValueKind.BOOLEAN: bool,
}
"""What an item of a sequence is, where its media URN says so. A record may hold more than JSON can, such as bytes."""


class Talks:
    """One conversation for many calls; a new one where the last has broken off, or another instance is asked for."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stack = ExitStack()
        self._talk: Conversation | None = None
        self._instance = ""

    def __enter__(self) -> "Talks":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def talk(self, instance: str = "") -> Conversation:
        if self._talk is not None and (self._talk.is_at_end or instance != self._instance):
            self._stack.close()
            self._talk = None
        self._instance = instance
        if self._talk is None:
            self._talk = self._stack.enter_context(self._bench.conversation())
        return self._talk


def samples(bench: Bench) -> None:
    """Each cap with its sample. One that calls a peer that nobody answers for was not exercised."""
    tell, note = bench.findings.tell, bench.findings.note
    sampled = {one.alias for one in bench.sampled}
    for cap in bench.own_caps:
        if cap.alias not in sampled:
            note(catalogue.SAMPLES, f"{cap.alias} was not exercised: it has no sample ([samples.{cap.alias}])")
    with Talks(bench) as talks:
        for one in sorted(bench.sampled, key=lambda sampled: sampled.instance):
            talk = talks.talk(one.instance)
            try:
                _call(bench, one, talk)
            except Fault as fault:
                tell(fault.check or catalogue.SAMPLES, f"{one.alias}: {fault.message}")
            except NotExercised as reason:
                one.why_not = str(reason)
                note(catalogue.SAMPLES, f"{one.alias} was not exercised: {reason}")
            _check_stderr(bench, talk)
    if bench.own_caps and not bench.working and catalogue.SAMPLES.number not in bench.findings.faults:
        raise NotExercised("no cap has a sample that could be called")


def _call(bench: Bench, one: SampledCap, talk: Conversation) -> None:
    call = one.begin(talk)
    try:
        talk.until(lambda: call.is_over or bool(_too_long(call, bench.durations)), bench.durations.sample_s, "terminal")
        if not call.is_over:
            raise Fault(_too_long(call, bench.durations))
    except Fault as fault:
        if talk.is_at_end:
            raise
        talk.connection.cancel(call.exchange, "it takes too long, or gives too much")
        message = f"{fault.message}. A sample is to end soon; --sample-limit SECONDS waits longer, or less"
        raise Fault(message, fault.check) from None
    one.made_peer_calls = bool(call.peer_calls)
    check_whole(call, one.alias)
    if call.error is not None and call.refused_peers:
        names = ", ".join(dict.fromkeys(call.refused_peers))
        raise NotExercised(f"it calls {names}, and the kit was not told how to answer (peers, --peer CAP=VALUE)")
    if call.error is not None:
        raise Fault(f"its sample ended with {call.ending}")
    one.took_s = call.took_s
    bench.figures[f"sample_{one.alias}_s"] = call.took_s
    for message in _wrong_outputs(one.definition, call):
        bench.findings.tell(catalogue.OUTPUTS, f"{one.alias}: {message}")


def _too_long(call: Call, durations: Durations) -> str:
    """Why nobody waits for its end any more; "" while it may go on."""
    now_s = time.monotonic()
    if call.received_bytes > durations.sample_bytes:
        return f"its sample gave more than {durations.sample_bytes} bytes, and did not end"
    if call.output_at_s is not None and now_s - call.output_at_s > durations.output_s:
        return f"its sample did not end within {durations.output_s:g} s of its first output"
    if now_s - call.last_s > durations.lost_s:
        return f"its sample gave no frame for {durations.lost_s:g} s"
    return ""


def _check_stderr(bench: Bench, talk: Conversation) -> None:
    process = talk.process
    if process.stderr_bytes > bench.durations.stderr_bytes:
        message = f"{process.stderr_bytes} bytes; at most {bench.durations.stderr_bytes} are well"
        bench.findings.tell(catalogue.STDERR, message)
    if "Traceback (most recent call last)" in process.log:
        bench.findings.tell(catalogue.STDERR, f"a traceback{process.log_tail}")


def outputs(bench: Bench) -> None:
    """What the samples have shown is told already."""
    bench.need_working()


def _wrong_outputs(definition: CapDefinition, call: Call) -> Iterator[str]:
    names = [output.name for output in call.outputs]
    for output in call.outputs:
        defined = definition.outputs.get(output.name)
        spoken = f"the output {output.name!r}" if output.name else "the main output"
        if defined is None:
            yield f"{spoken} is not in its definition"
            continue
        if names.count(output.name) > 1:
            yield f"{spoken} came {names.count(output.name)} times"
        if output.is_sequence is not defined.is_sequence:
            forms = {True: "a sequence", False: "bytes"}
            yield f"{spoken} came as {forms[output.is_sequence]}; its definition says {forms[defined.is_sequence]}"
            continue
        fault = _wrong_content(defined, output)
        if fault:
            yield f"{spoken} {fault}"
    main = definition.main_output
    if main is not None and "" not in names and not main.is_sequence and kind_of(main.media) not in _MAY_BE_EMPTY:
        yield f"the main output never came; its definition says {main.media}"


def _wrong_content(defined: OutputDefinition, output: Received) -> str:
    if defined.is_sequence:
        decoder = ItemDecoder()
        try:
            items = list(decoder.feed(output.data))
            decoder.finish()
        except CartdeckError as error:
            return f"is no sequence of items: {error.message}"
        wanted = dict if defined.media.conforms_to(_RECORD) else _ITEMS.get(kind_of(defined.media), object)
        odd = next((type(item).__name__ for item in items if not isinstance(item, wanted)), "")
        return f"has an item of the type {odd}, which is no {defined.media}" if odd else ""
    try:
        decode_value(ArgumentDefinition(name="it", media=defined.media, documentation=""), output.data)
    except CartdeckError as error:
        return f"is not what {defined.media} says: {error.message.removeprefix('it: ')}"
    return ""


def arguments(bench: Bench) -> None:
    """Wrong arguments, for each cap that can be asked without a model's load."""
    if not bench.own_caps:
        raise NotExercised("it serves no cap of its own")
    with Talks(bench) as talks:
        for cap in bench.own_caps:
            sample = next((one for one in bench.sampled if one.alias == cap.alias), None)
            for what, given in _wrong_arguments(cap, {} if sample is None else sample.inline):
                _refused(bench, talks.talk(), cap, what, given)


def _wrong_arguments(cap: CapDefinition, good: dict[str, bytes]) -> Iterator[tuple[str, dict[str, bytes]]]:
    yield "an argument that it does not have", {**good, "no-such-argument": b"x"}
    if any(argument.required for argument in cap.arguments.values()):
        yield "without its required arguments", {}
    for argument in cap.arguments.values():
        bad = _unreadable(argument)
        if bad is not None:
            yield f"{argument.name} as {bad!r}", {**good, argument.name: bad}


def _unreadable(argument: ArgumentDefinition) -> bytes | None:
    if argument.is_stream or argument.is_sequence:
        return None
    if argument.choices:
        return b"\xff" if argument.kind is ValueKind.TEXT else b"no choice"
    match argument.kind:
        case ValueKind.BYTES:
            return None
        case ValueKind.TEXT:
            return b"\xff\xfe"
        case ValueKind.INTEGER | ValueKind.NUMBER if argument.minimum is not None:
            return str(argument.minimum - 1).encode()
        case _:
            return b"{no json"


def _refused(bench: Bench, talk: Conversation, cap: CapDefinition, what: str, given: dict[str, bytes]) -> None:
    call = begin_call(talk, str(cap.urn), given, streams={})
    is_over = talk.wait(lambda: call.is_over, bench.durations.answer_s)
    check_whole(call, cap.alias)
    if not is_over:
        bench.findings.tell(
            catalogue.ARGUMENTS, f"{cap.alias}, {what}: no terminal {talk.why_not(bench.durations.answer_s)}"
        )
        if not talk.is_at_end:
            talk.connection.cancel(call.exchange)
    elif call.error is None or call.error.error_class is not ErrorClass.INPUT:
        message = f"{cap.alias}, {what}: ended with {call.ending}; expected an error of class input"
        bench.findings.tell(catalogue.ARGUMENTS, message)
