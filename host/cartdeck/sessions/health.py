"""Owns the signs of life of one process: its heartbeats, CPU time and stderr.

It does not know requests. Alive is not advancing: that is looked at for each call.
"""

from cartdeck.sessions.process import Process
from cartdeck.settings import HealthSettings


class Health:
    """Fed with the time of the last bytes; asked at each tick."""

    __slots__ = ("_limit_s", "_process", "_settings", "_signs", "_signs_at_s", "heard_at_s", "is_suspect", "rss_bytes")

    def __init__(self, settings: HealthSettings, process: Process, now_s: float) -> None:
        self.heard_at_s = now_s
        self.rss_bytes: int | None = None
        self.is_suspect = False
        """Heartbeats are missing: no new calls go there."""
        self._settings = settings
        self._process = process
        self._limit_s = settings.heartbeat_s * settings.missed_heartbeats
        self._signs: tuple[float, int] = (0.0, 0)
        self._signs_at_s = now_s

    def is_hung(self, now_s: float) -> bool:
        """Whether heartbeats are missing and, for one heartbeat's time more, CPU time and stderr stood still too.

        A process that computes with the interpreter lock held misses heartbeats and is busy, not hung; so is one that
        would compute and gets no core, because others have them.
        """
        if now_s - self.heard_at_s <= self._limit_s:
            self.is_suspect = False
            return False
        signs = (self._process.cpu_s(), self._process.log.total_bytes)
        if not self.is_suspect or signs != self._signs or self._process.waits_for_cpu():
            self.is_suspect = True
            self._signs, self._signs_at_s = signs, now_s
            return False
        return now_s - self._signs_at_s >= self._settings.heartbeat_s

    @property
    def hung_text(self) -> str:
        return (
            f"hangs: {self._settings.missed_heartbeats} heartbeats are missing, and it neither used CPU time nor "
            "wrote to stderr meanwhile"
        )
