"""Owns the last lines that a cartridge wrote to stderr, within a bound.

It does not know the process or the pipe that the bytes come from.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice


class LogRing:
    """Bytes in, whole lines kept; the oldest are dropped, and counted, when they grow past the bound.

    `total_bytes` counts everything ever written: that it moves shows that the process lives.
    """

    def __init__(self, *, ring_bytes: int, line_bytes: int, on_line: Callable[[str], None] | None = None) -> None:
        self.total_bytes = 0
        self.total_lines = 0
        """Whole lines that ever came, those that were dropped among them."""
        self.dropped_bytes = 0
        self._ring_bytes = ring_bytes
        self._line_bytes = line_bytes
        self._on_line = on_line
        self._lines: deque[bytes] = deque()
        self._kept_bytes = 0
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Take what was read. A line longer than the bound is split there."""
        self.total_bytes += len(data)
        *whole, rest = (self._partial + data).split(b"\n")
        for line in whole:
            for start in range(0, len(line), self._line_bytes):
                self._keep(line[start : start + self._line_bytes])
            if not line:
                self._keep(b"")
        while len(rest) > self._line_bytes:
            self._keep(rest[: self._line_bytes])
            rest = rest[self._line_bytes :]
        self._partial = rest

    def finish(self) -> None:
        """The stream ended: what came after the last newline is a line too."""
        if self._partial:
            partial, self._partial = self._partial, b""
            self._keep(partial)

    def tail(self, count: int) -> list[str]:
        """The last `count` lines, an unfinished one included, oldest first."""
        lines = [*self._lines, self._partial] if self._partial else list(self._lines)
        return [_text(line) for line in lines[-count:]] if count else []

    def lines_since(self, count: int) -> list[str]:
        """The whole lines behind the first `count` that ever came, as far as they are kept, oldest first."""
        new = min(self.total_lines - count, len(self._lines))
        return [_text(line) for line in islice(self._lines, len(self._lines) - new, None)] if new > 0 else []

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self.total_lines += 1
        self._kept_bytes += len(line) + 1
        while self._kept_bytes > self._ring_bytes:
            size = len(self._lines.popleft()) + 1
            self._kept_bytes -= size
            self.dropped_bytes += size
        if self._on_line is not None:
            self._on_line(_text(line))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").rstrip("\r")
