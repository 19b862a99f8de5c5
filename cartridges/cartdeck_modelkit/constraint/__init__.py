"""Owns what a constraint on a text is: which tokens may come next, whatever made it. `guidance` makes them.

It does not know models nor how a token is drawn; importing this package loads no engine.
"""

from typing import Protocol


class Constraint(Protocol):
    """One text on its way, token by token: `mask`, then `accept` of one that the mask allows, until `is_complete`."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow what was accepted, but the end of the text."""
        ...

    def mask(self) -> bytes:
        """Which tokens may come next: one bit each, the lowest bit of a byte first. The end of the text is among them
        where the text may end here.

        Raises `UNSUPPORTED_SCHEMA` or `INVALID_GRAMMAR` when it has become too complex to say.
        """
        ...

    def accept(self, token: int) -> None:
        """Takes the next token. Raises the same as `mask`, also for one that the mask does not allow."""
        ...

    def fork(self) -> "Constraint":
        """Another text that stands where this one stands."""
        ...
