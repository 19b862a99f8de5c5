"""Owns what the engine remembers of each session key beyond one process: starts, ends, traffic, the last error.

It does not decide anything with it: the pool says what happens, and `stats` shows it.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from cartdeck.pool.door import Door
from cartdeck.pool.policy import SessionKey
from cartdeck.sessions.session import Session
from cartdeck.stats import EngineStats, MemoryStats, Restart, SessionStats, Traffic, untraced
from cartdeck_protocol.errors import CartdeckError

_MOST_KEYS: Final = 256
"""Keys without a door that are remembered: an engine that runs for months meets any number of models."""
_MOST_RESTARTS: Final = 16
_ASKED: Final = ("ENDED", "it was asked to end")


@dataclass(slots=True)
class _Record:
    """What the processes of one key left behind."""

    traffic: Traffic = field(default_factory=Traffic)
    starts: int = 0
    restarts: deque[Restart] = field(default_factory=lambda: deque[Restart](maxlen=_MOST_RESTARTS))
    last_end: tuple[str, str] | None = None
    last_error: CartdeckError | None = None

    @property
    def restart_count(self) -> int:
        return max(0, self.starts - 1)


class History:
    """Told by the pool; asked by the engine. The oldest keys are dropped, their sums stay."""

    def __init__(self, now_s: float) -> None:
        self._opened_at_s = now_s
        self._records: dict[SessionKey, _Record] = {}
        self._dropped = Traffic()
        self._dropped_starts = self._dropped_restarts = 0

    def on_start(self, key: SessionKey, doors: Mapping[SessionKey, Door]) -> None:
        """A process of `key` is about to start."""
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record  # the latest stands last
        record.starts += 1
        if record.last_end is not None:
            code, message = record.last_end
            record.restarts.append(Restart(time.time(), code, message))
        if len(self._records) > _MOST_KEYS:
            self._drop(doors)

    def _drop(self, doors: Mapping[SessionKey, Door]) -> None:
        key = next((one for one in self._records if one not in doors), None)
        if key is not None:
            record = self._records.pop(key)
            self._dropped += record.traffic
            self._dropped_starts += record.starts
            self._dropped_restarts += record.restart_count

    def on_end(self, session: Session, error: CartdeckError | None) -> None:
        """Its process takes nothing more; `error` is None when it was asked to end."""
        record = self._records.get(session.key)
        if record is not None:
            record.last_end = _ASKED if error is None else (error.code_name, error.message)
            record.last_error = untraced(error) if error is not None else session.last_error or record.last_error

    def on_gone(self, session: Session) -> None:
        """Its process is gone: nothing is counted there any more."""
        record = self._records.get(session.key)
        if record is None:
            self._dropped += session.traffic()
        else:
            record.traffic += session.traffic()

    def stats(
        self, doors: Mapping[SessionKey, Door], ending: Collection[Session], *, memory: MemoryStats, now_s: float
    ) -> EngineStats:
        """All of it now. Reads /proc once for each process."""
        keys = dict.fromkeys((*self._records, *doors, *(one.key for one in ending)))
        sessions = tuple(
            _session_stats(
                key,
                doors.get(key),
                self._records.get(key) or _Record(),
                [one for one in ending if one.key == key],
            )
            for key in keys
        )
        requests: Counter[str] = Counter()
        for one in sessions:
            requests.update(one.requests)
        return EngineStats(
            sessions=sessions,
            requests=dict(requests),
            traffic=sum((one.traffic for one in sessions), self._dropped),
            rss_bytes=sum(one.rss_bytes or 0 for one in sessions),
            cpu_s=sum(one.cpu_s or 0.0 for one in sessions),
            starts=self._dropped_starts + sum(one.starts for one in sessions),
            restarts=self._dropped_restarts + sum(one.restarts for one in sessions),
            uptime_s=now_s - self._opened_at_s,
            memory=memory,
        )


def _session_stats(key: SessionKey, door: Door | None, record: _Record, ending: list[Session]) -> SessionStats:
    session = None if door is None else door.session
    live = [*ending, *([] if session is None else [session])]
    shown = live[-1] if live else None
    process = None if shown is None else shown.process
    is_running = process is not None and process.is_running
    status = None if door is None else door.status()
    idle_state = "ending" if ending else "ended"
    last_error = None if shown is None else shown.last_error
    return SessionStats(
        key=key,
        state=idle_state if status is None else status.state,
        pid=process.pid if process is not None and is_running else None,
        requests={} if door is None else door.phases(),
        traffic=sum((one.traffic() for one in live), record.traffic),
        rss_bytes=process.rss_bytes() if process is not None and is_running else None,
        reserved_bytes=0 if shown is None else shown.reserved_bytes,
        priority=None if shown is None else shown.priority,
        cpu_s=process.cpu_s() if process is not None and is_running else None,
        starts=record.starts,
        restarts=record.restart_count,
        last_restarts=tuple(record.restarts),
        failures=0 if status is None else status.failures,
        last_error=record.last_error if shown is None or shown in ending else last_error or record.last_error,
    )
