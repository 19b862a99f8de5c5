"""Owns what one call wants to say while the pipe is full: the latest progress, and a ring of lines.

It does not know handlers. Credit never holds a LOG; only a host that does not read does.
"""

from collections import deque
from typing import Any, Final, Protocol

from cartdeck_protocol.wire import Connection, Exchange

RING_LINES: Final = 1000


class Pipe(Protocol):
    """What the queue needs of the service."""

    connection: Connection

    @property
    def is_congested(self) -> bool: ...


class LogQueue:
    """`progress` and `line` leave at once unless the pipe is full; then the latest progress and the last lines wait."""

    def __init__(self, pipe: Pipe, exchange: Exchange) -> None:
        self._pipe = pipe
        self._exchange = exchange
        self._lines: deque[tuple[str, str]] = deque()
        self._latest: tuple[float, str, dict[str, Any]] | None = None
        self.lost_lines = 0

    def progress(self, fraction: float, message: str, **details: Any) -> None:
        self._latest = (fraction, message, details)
        self._release()

    def line(self, level: str, message: str) -> None:
        if len(self._lines) == RING_LINES:
            self._lines.popleft()
            self.lost_lines += 1
        self._lines.append((level, message))
        self._release()

    def _release(self) -> None:
        if not self._pipe.is_congested:
            self.release()

    def release(self) -> None:
        """Hand over what waits, whatever the pipe's state: the terminal is about to follow."""
        connection, exchange = self._pipe.connection, self._exchange
        if self.lost_lines:
            connection.log(exchange, "warning", f"{self.lost_lines} log lines were lost: the host did not read")
            self.lost_lines = 0
        while self._lines:
            level, message = self._lines.popleft()
            connection.log(exchange, level, message)
        if self._latest is not None:
            fraction, message, details = self._latest
            self._latest = None
            connection.log(exchange, "progress", message, progress=fraction, **details)
