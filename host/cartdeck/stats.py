"""Owns the figures by which the engine shows how it does: one record for each session key, and the totals.

It does not know where they are counted. Plain values; `to_plain()` gives what JSON takes.
"""

from dataclasses import dataclass, fields
from typing import Any

from cartdeck.pool.policy import SessionKey
from cartdeck.pool.priority import Priority
from cartdeck_protocol.errors import CartdeckError, from_wire


@dataclass(slots=True, frozen=True)
class Traffic:
    """What went over the frame pipes, as the host counts it."""

    read_bytes: int = 0
    written_bytes: int = 0
    received_frames: int = 0
    opened_requests: int = 0
    """Requests sent to the cartridge, the identity probe of each start among them."""
    stragglers: int = 0
    """Frames for a request that had ended, other than late ones."""
    strays: int = 0
    """Frames for a request that was never opened."""
    bad_progress: int = 0
    """Progresses outside of [0, 1], NaN, or with negative counts: not handed on."""

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Traffic)))

    def to_plain(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True, frozen=True)
class Restart:
    """A process of a key that was started after an earlier one had ended."""

    at_s: float
    """Seconds since 1970."""
    code: str
    """Why the earlier one ended: the code of its error, or "ENDED" where it was asked to (unload, eviction)."""
    message: str

    def to_plain(self) -> dict[str, Any]:
        return {"at_s": self.at_s, "code": self.code, "message": self.message}


@dataclass(slots=True, frozen=True)
class SessionStats:
    """One session key, over all the processes it had since the engine was opened."""

    key: SessionKey
    state: str
    """As in `SessionStatus`; "ended" where no process runs and nothing waits or failed."""
    pid: int | None
    requests: dict[str, int]
    """How many are there by phase: queued and starting at the door; open ones by the phase that the cartridge last
    named, "running" before it named one, "cancelling" while the terminal of an answered one is awaited."""
    traffic: Traffic
    rss_bytes: int | None
    """Of the process that runs now."""
    reserved_bytes: int
    """What it was granted of the memory budget; what counts there is the larger of the two."""
    priority: Priority | None
    """The class of the process that runs: who gives way first when memory is short."""
    cpu_s: float | None
    """As `rss_bytes`."""
    starts: int
    restarts: int
    last_restarts: tuple[Restart, ...]
    """The latest of them, oldest first."""
    failures: int
    """Processes in a row that failed before they answered a request."""
    last_error: CartdeckError | None
    """Of a request or of a process, whichever came last."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "cartridge": self.key.cartridge,
            "instance": self.key.instance,
            "state": self.state,
            "pid": self.pid,
            "requests": dict(self.requests),
            **self.traffic.to_plain(),
            "rss_bytes": self.rss_bytes,
            "reserved_bytes": self.reserved_bytes,
            "class": None if self.priority is None else self.priority.word,
            "cpu_s": self.cpu_s,
            "starts": self.starts,
            "restarts": self.restarts,
            "last_restarts": [one.to_plain() for one in self.last_restarts],
            "failures": self.failures,
            "last_error": None if self.last_error is None else self.last_error.to_wire(),
        }


@dataclass(slots=True, frozen=True)
class MemoryStats:
    """The memory budget."""

    budget_bytes: int
    """0 is no limit."""
    used_bytes: int
    """What sessions that count hold of it: what they were granted, or what was measured where that is more."""
    waiting: int
    """Cartridges that wait until there is enough for what they are about to load."""

    def to_plain(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True, frozen=True)
class EngineStats:
    """All session keys, and their sums. The sums count keys that are forgotten too, the list has the latest."""

    sessions: tuple[SessionStats, ...]
    requests: dict[str, int]
    traffic: Traffic
    rss_bytes: int
    """Of all cartridges that run, without the host."""
    cpu_s: float
    """The same."""
    starts: int
    restarts: int
    uptime_s: float
    memory: MemoryStats

    def to_plain(self) -> dict[str, Any]:
        return {
            "uptime_s": self.uptime_s,
            "requests": dict(self.requests),
            **self.traffic.to_plain(),
            "rss_bytes": self.rss_bytes,
            "cpu_s": self.cpu_s,
            "memory": self.memory.to_plain(),
            "starts": self.starts,
            "restarts": self.restarts,
            "sessions": [one.to_plain() for one in self.sessions],
        }


def untraced(error: CartdeckError) -> CartdeckError:
    """The same error as an object of its own. One that a caller raises holds that caller's frames: a record that kept
    it would keep them, and all that they hold."""
    return from_wire(error.to_wire())
