"""Owns how a check ends early: a fault, or a reason why it could not be exercised. It does not know what is checked."""

from cartdeck_conformance.catalogue import Check


class Fault(Exception):
    """What the cartridge did wrong. `check` is the check that has failed with it; None is the one that is running."""

    def __init__(self, message: str, check: Check | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.check = check


class NotExercised(Exception):
    """Why this check says nothing of the cartridge."""


class Stopped(Exception):
    """Whoever started the kit wants it to end now."""
