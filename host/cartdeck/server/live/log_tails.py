"""Owns the last lines of each cartridge's log: what its processes wrote to stderr, and what it said about calls.

It does not know who reads them. A reader names the number of the last line that it has, and gets those behind it.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.sessions.session import Session

MOST_LINES: Final = 2000
_MOST_CHARACTERS: Final = 2000
_MOST_CARTRIDGES: Final = 256


@dataclass(slots=True, frozen=True)
class LogLine:
    number: int
    at_s: float
    """Seconds since 1970."""
    source: str
    """`call`, or the process: `pid 123`."""
    level: str
    text: str

    def to_plain(self) -> list[Any]:
        return [self.number, round(self.at_s, 3), self.source, self.level, self.text]


class LogTails:
    """The tails of all cartridges of one server, by their names."""

    def __init__(self) -> None:
        self._tails: dict[str, deque[LogLine]] = {}
        self._read: dict[int, int] = {}
        """Of each process, by its pid: how many of its lines are here."""
        self._last = 0

    def add(self, cartridge: str, source: str, level: str, text: str) -> None:
        tail = self._tails.get(cartridge)
        if tail is None:
            if len(self._tails) >= _MOST_CARTRIDGES:
                return
            tail = self._tails[cartridge] = deque(maxlen=MOST_LINES)
        self._last += 1
        cut = text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
        tail.append(LogLine(self._last, time.time(), source, level, cut))

    def read(self, sessions: Iterable[Session]) -> None:
        """Take over what the processes of these sessions wrote since the last time; the others are forgotten."""
        seen: dict[int, int] = {}
        for session in sessions:
            process = session.process
            if process is None:
                continue
            log, known = process.log, self._read.get(process.pid, 0)
            if known > log.total_lines:
                known = 0  # another process has that number now
            for line in log.lines_since(known):
                self.add(session.key.cartridge, f"pid {process.pid}", "stderr", line)
            seen[process.pid] = log.total_lines
        self._read = seen

    def since(self, cartridge: str, number: int) -> list[LogLine]:
        """The lines of a cartridge behind that number, oldest first."""
        tail = self._tails.get(cartridge, ())
        if not tail or tail[-1].number <= number:
            return []
        return [line for line in tail if line.number > number]
