"""Owns what llama.cpp says while it works: whole lines with their level, the last ones kept, no floods.

It does not know ctypes, nor who asks for the lines.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

LEVELS: Final = {1: "debug", 2: "info", 3: "warning", 4: "error"}
_CONTINUED: Final = 5
_URGENT: Final = ("warning", "error")

TAIL_LINES: Final = 30
SECTION_LINES: Final = 300
LINE_CHARACTERS: Final = 1000

Listener = Callable[[str, str], None]


def write_to_stderr(line: str) -> None:
    """Where a process's own log goes; the host keeps its last lines."""
    print(line, file=sys.stderr, flush=True)


class NativeLog:
    """Takes pieces of text from any thread; `write` gets each line with its level in front, debug lines left out.

    A section is one load or one request: in each, the first `SECTION_LINES` lines are written and the rest counted.
    """

    def __init__(self, write: Callable[[str], None] = write_to_stderr) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._level, self._partial = "info", ""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._errors: deque[str] = deque(maxlen=TAIL_LINES)
        self._lines = 0
        self._listener: Listener | None = None

    def begin_section(self, listener: Listener | None = None) -> None:
        """Forgets the lines kept so far; from now on `listener(level, line)` hears of warnings and errors."""
        with self._lock:
            if self._lines > SECTION_LINES:
                self._write(f"llama.cpp info: {self._lines - SECTION_LINES:,} more lines were left out")
            self._lines = 0
            self._tail.clear()
            self._errors.clear()
            self._listener = listener

    def add(self, level: int, text: str) -> None:
        """Takes a piece of a line, or several lines. Level 5 goes on where the last piece ended."""
        with self._lock:
            if level != _CONTINUED:
                self._end_line()
                self._level = LEVELS.get(level, "info")
            *lines, self._partial = (self._partial + text).split("\n")
            for line in lines:
                self._take(line)
            if len(self._partial) > LINE_CHARACTERS:
                self._end_line()

    def tail(self) -> list[str]:
        """The section's last lines, oldest first."""
        with self._lock:
            self._end_line()
            return list(self._tail)

    def errors(self) -> list[str]:
        """The section's last lines that are errors, without their level."""
        with self._lock:
            self._end_line()
            return list(self._errors)

    def _end_line(self) -> None:
        line, self._partial = self._partial, ""
        if line:
            self._take(line)

    def _take(self, line: str) -> None:
        line = line.rstrip()[:LINE_CHARACTERS]
        if not line or self._level == "debug":
            return
        self._tail.append(f"{self._level}: {line}")
        if self._level == "error":
            self._errors.append(line)
        if self._level in _URGENT and self._listener is not None:
            self._listener(self._level, line)
        self._lines += 1
        if self._lines <= SECTION_LINES:
            self._write(f"llama.cpp {self._level}: {line}")
