"""Owns the order of the checks, and which of them must have passed before another can say anything.

It does not know how they are run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import Bench
from cartdeck_conformance.catalogue import Check
from cartdeck_conformance.checks import (
    cancelling,
    greeting,
    hostile_connection,
    hostile_request,
    leaving,
    load,
    peer_calls,
    samples,
    transport,
    universal,
    watched,
)

Run = Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One check. `needs` must have passed, and `after` must have run, whatever came of them."""

    check: Check
    run: Run
    needs: tuple[Check, ...] = ()
    after: tuple[Check, ...] = ()


_IDENTITY: Final = (catalogue.IDENTITY,)
_UNIVERSAL: Final = (catalogue.IDENTITY, catalogue.DISCARD)
_SAMPLED: Final = (catalogue.SAMPLES,)
_CONCURRENT: Final = (catalogue.CONCURRENT,)
_TALKED: Final = (catalogue.IDENTITY, catalogue.DISCARD, catalogue.UNKNOWN_CAP, catalogue.SAMPLES)

SCHEDULE: Final = (
    Scheduled(catalogue.HANDSHAKE, greeting.handshake),
    Scheduled(catalogue.START, greeting.start_time, needs=_IDENTITY),
    Scheduled(catalogue.MANIFEST, greeting.manifest),
    Scheduled(catalogue.IDENTITY, universal.identity),
    Scheduled(catalogue.DISCARD, universal.discard),
    Scheduled(catalogue.SAMPLES, samples.samples),
    Scheduled(catalogue.OUTPUTS, samples.outputs, after=(catalogue.SAMPLES,)),
    Scheduled(catalogue.UNKNOWN_CAP, universal.unknown_cap, needs=_IDENTITY),
    Scheduled(catalogue.ARGUMENTS, samples.arguments),
    Scheduled(catalogue.ERRORS, watched.seen, after=(catalogue.UNKNOWN_CAP,)),
    Scheduled(catalogue.FRAMES, watched.seen, after=_TALKED),
    Scheduled(catalogue.TERMINALS, watched.seen, after=_TALKED),
    Scheduled(catalogue.PROGRESS, watched.seen_in_samples, after=_TALKED),
    Scheduled(catalogue.KEEPALIVE, watched.seen_in_samples, after=_TALKED),
    Scheduled(catalogue.HEARTBEAT, universal.heartbeat),
    Scheduled(catalogue.STDOUT, watched.seen, after=_TALKED),
    Scheduled(catalogue.STDERR, watched.seen, after=_TALKED),
    Scheduled(catalogue.BROKEN_CONNECTION, hostile_connection.broken_connection),
    Scheduled(catalogue.BROKEN_REQUEST, hostile_request.broken_request, needs=_IDENTITY, after=_CONCURRENT),
    Scheduled(catalogue.LATE_FRAMES, hostile_request.late_frames, needs=(*_IDENTITY, catalogue.HEARTBEAT)),
    Scheduled(catalogue.SPLIT, transport.split, needs=_IDENTITY),
    Scheduled(catalogue.CREDIT_KEPT, transport.credit_kept, needs=_IDENTITY, after=(*_SAMPLED, catalogue.CREDIT_GIVEN)),
    Scheduled(catalogue.CREDIT_GIVEN, transport.credit_given, needs=_UNIVERSAL),
    Scheduled(catalogue.CANCEL, cancelling.cancel, needs=_IDENTITY, after=_SAMPLED),
    Scheduled(catalogue.BIG, transport.big, needs=(*_UNIVERSAL, catalogue.CREDIT_GIVEN), after=_CONCURRENT),
    Scheduled(catalogue.CONCURRENT, load.concurrent, needs=_IDENTITY, after=_SAMPLED),
    Scheduled(catalogue.OVERFLOW, load.overflow, needs=_IDENTITY),
    Scheduled(catalogue.PEER_CALLS, peer_calls.peer_calls, after=_SAMPLED),
    Scheduled(catalogue.HOST_DEATH, leaving.host_death, after=_SAMPLED),
    Scheduled(catalogue.MEMORY, load.memory, needs=_IDENTITY, after=_SAMPLED),
)
BY_NUMBER: Final = {one.check.number: one for one in SCHEDULE}
