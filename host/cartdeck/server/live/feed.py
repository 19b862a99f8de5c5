"""Owns what a page that is open is told: how everything is, and from then on what has changed.

It does not know HTTP. A reader remembers one number for each record that it was told, so it costs as much as there is
to see, however long it stays; the look at all sessions is shared by the readers.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, cast

from cartdeck import __version__
from cartdeck.catalog.entry import Capability
from cartdeck.plain import plain
from cartdeck.pool.policy import SessionKey
from cartdeck.server.models.directory import ServedModel
from cartdeck.server.models.in_memory import keys_of
from cartdeck.server.models.model_state import ModelState
from cartdeck.server.service import Service
from cartdeck.stats import SessionStats
from cartdeck_protocol.errors import CartdeckError

LOOK_EVERY_S: Final = 1.0
_MIB: Final = 1024 * 1024
_MOST_ERROR_LINES: Final = 40

Records: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Kind of thing -> its key -> what is shown of it."""


class LiveFeed:
    """How one server is now; looked at no more often than `LOOK_EVERY_S`, however many read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looked_at_s = -LOOK_EVERY_S
        self._records: Records = {}

    def look(self) -> Records:
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            self._records = self._made()
        return self._records

    def _made(self) -> Records:
        service = self._service
        stats = service.engine.stats()
        totals = {
            "version": __version__,
            "started_s": service.started_s,
            "open_calls": service.journal.open_calls,
            "memory": stats.memory.to_plain(),
            "rss_bytes": _rounded(stats.rss_bytes),
            "starts": stats.starts,
            "restarts": stats.restarts,
        }
        return {
            "server": {"": totals},
            "cartridges": {
                one.cartridge.name: {
                    "version": one.cartridge.manifest.version,
                    "is_available": one.cartridge.is_available,
                    "install": [need.install for need in one.cartridge.missing],
                    "caps": [cap.alias for cap in one.cartridge.manifest.caps],
                }
                for one in service.engine.cartridges()
            },
            "sessions": {_mark(one.key): _session(one) for one in stats.sessions},
            "models": {one.name: self._model(one, service.states.of(one.name)) for one in service.directory.models()},
        }

    def _model(self, one: ServedModel, state: ModelState) -> dict[str, Any]:
        keys = keys_of(self._service.engine, self._service.directory, one)
        return _model(one, state) | {"sessions": [_mark(key) for key in keys]}


def _mark(key: SessionKey) -> str:
    """The key of a session's record."""
    return f"{key.cartridge} {key.instance}"


def _model(one: ServedModel, state: ModelState) -> dict[str, Any]:
    return {
        "spec": one.spec,
        "kinds": [kind.value for kind in one.kinds],
        "more": [can.value for can in (Capability.TOOLS, Capability.VISION) if can in (one.capabilities or ())],
        "aliases": list(one.aliases),
        "description": one.description,
        "state": state.name,
        "error": None if state.error is None else _error(state.error),
    }


def _session(one: SessionStats) -> dict[str, Any]:
    last = one.last_restarts[-1] if one.last_restarts else None
    return {
        "cartridge": one.key.cartridge,
        "instance": one.key.instance,
        "state": one.state,
        "pid": one.pid,
        "requests": {phase: count for phase, count in one.requests.items() if count},
        "calls": one.traffic.opened_requests,
        "rss_bytes": None if one.rss_bytes is None else _rounded(one.rss_bytes),
        "reserved_bytes": one.reserved_bytes,
        "class": None if one.priority is None else one.priority.word,
        "starts": one.starts,
        "restarts": one.restarts,
        "last_restart": None if last is None else last.to_plain(),
        "last_error": None if one.last_error is None else _error(one.last_error),
    }


def _error(error: CartdeckError) -> dict[str, Any]:
    lines: Any = error.details.get("log")
    given = cast("list[Any]", lines) if isinstance(lines, list) else []
    tail = [str(line)[:1000] for line in given[-_MOST_ERROR_LINES:]]
    return {"code": error.code_name, "message": error.message, "remedy": error.remedy, "log": tail}


def _rounded(size_bytes: int) -> int:
    """In whole MiB: less is no news."""
    return round(size_bytes / _MIB) * _MIB


class Reader:
    """One page that is open. `log` names the cartridge whose log it shows."""

    def __init__(self, feed: LiveFeed, service: Service, *, log: str | None = None) -> None:
        self._feed = feed
        self._service = service
        self._log = log
        self._told: dict[tuple[str, str], int] = {}
        self._is_first = True
        self._version = 0
        self._line = 0

    def news(self) -> Iterator[tuple[str, Any]]:
        """What there is to tell, by the events' names: `state`, `calls` and `log`. The first has all there is."""
        if state := self._state():
            yield "state", state
        self._is_first = False
        journal = self._service.journal
        if journal.version > self._version:
            entries = journal.since(self._version)
            self._version = journal.version
            yield "calls", [one.to_plain() for one in entries]
        if self._log is not None:
            self._service.tails.read(self._service.engine.pool.sessions)
            lines = self._service.tails.since(self._log, self._line)
            if lines:
                self._line = lines[-1].number
                yield "log", {"cartridge": self._log, "lines": [one.to_plain() for one in lines]}

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: set[tuple[str, str]] = set()
        for kind, records in self._feed.look().items():
            for key, record in records.items():
                mark = hash(json.dumps(record, default=str))
                seen.add((kind, key))
                if self._told.get((kind, key)) != mark:
                    self._told[kind, key] = mark
                    found.setdefault(kind, {})[key] = record
        gone = [one for one in self._told if one not in seen]
        for one in gone:
            del self._told[one]
        if gone:
            found["gone"] = [list(one) for one in gone]
        if found:
            found["is_whole"] = self._is_first
        return plain(found)
