"""Owns the checks whose laws hold in every conversation: the watch has told their breaches already.

What is left here is to say whether there was anything to see.
"""

from cartdeck_conformance.bench import Bench
from cartdeck_conformance.verdict import NotExercised


def seen(_bench: Bench) -> None:
    """Any conversation shows it."""


def seen_in_samples(bench: Bench) -> None:
    """Raises NotExercised where no cap of the cartridge itself has been called."""
    if not bench.working and bench.own_caps:
        raise NotExercised("no cap has a sample that was answered")
