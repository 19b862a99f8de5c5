"""Owns lines on standard error that nobody waits for: a thread writes them, from a queue that is bounded.

It does not know what they say. Whoever reads a server's log may stop, and a full pipe would hold every request up: then
lines are dropped, and how many is the next line that can be written.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 4 * 1024 * 1024
LAST_S: Final = 1.0
"""So long what waits when the server ends is held up by a reader that takes nothing."""
MOST_S: Final = 10.0
"""And so long in all."""
_PIECE: Final = 4096
"""A write waits until all of it is taken: of a slow reader one sees so that it reads."""


class LogLines:
    """The lines of one process. `note` makes the line that tells of so many that were dropped."""

    def __init__(self, note: Callable[[int], str], *, descriptor: int = 2, most_bytes: int = MOST_BYTES) -> None:
        self._note = note
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_ending = False
        self._is_gone = False
        self._written = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """One line with its end. Never waits, and never fails."""
        data = line.encode("utf-8", "replace")
        with self._change:
            if self._is_gone:
                return
            if self._size + len(data) > self._most_bytes:
                self._dropped += 1
                return
            self._lines.append(data)
            self._size += len(data)
            self._change.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for what was not written yet, as long as it is read."""
        limit_s = time.monotonic() + MOST_S
        with self._change:
            self._is_ending = True
            self._change.notify()
            thread = self._thread
        written = -1
        while thread is not None and thread.is_alive() and written != self._written and time.monotonic() < limit_s:
            written = self._written
            thread.join(LAST_S)

    def _run(self) -> None:
        try:
            while (data := self._next()) is not None:
                left = memoryview(data)
                while left:
                    count = os.write(self._descriptor, left[:_PIECE])
                    left = left[count:]
                    self._written += count
        except OSError:  # nobody reads any more: the server goes on
            with self._change:
                self._is_gone = True
                self._lines.clear()

    def _next(self) -> bytes | None:
        """What is to be written now, several lines together; None at the end."""
        with self._change:
            while not self._lines and not self._is_ending:
                self._change.wait()
            data = b"".join(self._lines)
            self._lines.clear()
            self._size = 0
            if self._dropped:
                data += self._note(self._dropped).encode("utf-8", "replace")
                self._dropped = 0
            return data or None
