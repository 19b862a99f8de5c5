"""Owns the order of the checks, and which of them must have passed before another can say anything.

It does not know how they are run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import Bench
from cartdeck_conformance.catalogue import Check
from cartdeck_conformance.checks import greeting, samples, universal, watched

Run = Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One check. `needs` must have passed, and `after` must have run, whatever came of them."""

    check: Check
    run: Run
    needs: tuple[Check, ...] = ()
    after: tuple[Check, ...] = ()


_IDENTITY: Final = (catalogue.IDENTITY,)
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
)
BY_NUMBER: Final = {one.check.number: one for one in SCHEDULE}
