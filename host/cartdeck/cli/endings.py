"""Owns the two ends of a command that are no error: its reader has gone, or a signal asked for the end.

It does not know who finds them, nor which exit code they have.
"""


class ReaderGone(Exception):
    """Whoever read standard output has closed it; nobody waits for more."""


class Interrupted(Exception):
    """A signal ended the command. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
