"""Owns the check of a cartridge's peer calls: their refusal, and the cancel of the request that they are made for."""

from cartdeck_conformance.bench import Bench, check_identity, check_whole
from cartdeck_conformance.sample_call import SampledCap
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.errors import Code, failure


def peer_calls(bench: Bench) -> None:
    """Each cap whose sample made one."""
    caps = [one for one in bench.sampled if one.made_peer_calls]
    if not caps:
        raise NotExercised("no sample makes a peer call")
    for one in caps:
        _refused(bench, one)
        _cancelled(bench, one)


def _refused(bench: Bench, one: SampledCap) -> None:
    """A peer that fails: the request has its terminal all the same."""
    with bench.conversation() as talk:
        talk.peers.refusal = failure(Code.ENDPOINT_UNREACHABLE, "the kit answers every peer call with an error now")
        call = one.begin(talk)
        talk.finish(call, bench.durations.sample_s)
        check_whole(call, one.alias)
        if call.error is not None and call.error.code is Code.HANDLER_FAILED:
            raise Fault(f"{one.alias}: the error of its peer became {call.ending}; expected ENDPOINT_UNREACHABLE")
        check_identity(talk, what=f"identity behind {one.alias} with a failing peer")


def _cancelled(bench: Bench, one: SampledCap) -> None:
    """A CANCEL while the peer has not answered: the peer call is cancelled, and the request ends."""
    durations = bench.durations
    with bench.conversation() as talk:
        talk.peers.is_held = True
        call = one.begin(talk)
        if not talk.wait(lambda: bool(talk.peers.open) or call.is_over, durations.sample_s) or call.is_over:
            return  # this time it found what it needs by itself
        [asked, *_] = talk.peers.open
        talk.connection.cancel(call.exchange, "the kit cancels")
        if not talk.wait(lambda: call.is_over and asked.is_cancelled, durations.cancel_s):
            what = "its own terminal" if not call.is_over else f"a CANCEL of its peer call of {asked.cap}"
            raise Fault(f"{one.alias}, cancelled while its peer worked, gave no {what} within {durations.cancel_s:g} s")
        check_whole(call, one.alias)
