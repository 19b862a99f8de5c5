"""Owns the two ends of a command that are no error: its reader has gone, or a signal asked for the end.

It does not know who finds them, nor what must be cleaned up before: while that is so, a call watches signals itself.
"""

import os
import signal
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class ReaderGone(Exception):
    """Whoever read standard output has closed it; nobody waits for more."""


class Interrupted(Exception):
    """A signal ended the command. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def end_at_signals() -> None:
    """From now on a signal ends the process at once and quietly, with its exit code: there is nothing to clean up."""
    for number in SIGNALS:
        signal.signal(number, _end)


def ignore_signals() -> None:
    """From now on signals change nothing: the process is about to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
