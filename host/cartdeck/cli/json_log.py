"""Owns the log as JSON: with --log-json every line on standard error is one object.

It does not know calls or cartridges: a display tells it which call runs.
"""

import contextlib
import json
import logging
import secrets
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from cartdeck.cli.display import PlainLines, Silence, is_shown
from cartdeck.cli.output import STANDARD_LINE

if TYPE_CHECKING:
    from cartdeck.calls.call import Call
    from cartdeck.events import Log, Progress

NEWS_EVERY_S: Final = 1.0
_CARTRIDGE_LOGGER: Final = "cartdeck.cartridge."


class JsonLog:
    """Writes the lines. Each has time (seconds since 1970), level, cap, call, session, request, cartridge and message;
    what is not known is null."""

    def __init__(self) -> None:
        self._cap: str | None = None
        self._call: Call | None = None
        self._call_id: str | None = None
        self._lock = threading.Lock()

    def begin(self, cap: str, call: "Call") -> None:
        """From now on lines are about this call."""
        self._cap, self._call, self._call_id = cap, call, secrets.token_hex(6)

    def write(self, level: str, message: str, *, cartridge: str | None = None, **more: Any) -> None:
        call = self._call
        record = {
            "time": round(time.time(), 6),
            "level": level,
            "cap": self._cap,
            "call": self._call_id,
            "session": None if call is None else str(call.key) or None,
            "request": None if call is None else call.request_id or None,
            "cartridge": cartridge,
            "message": message,
            **more,
        }
        line = STANDARD_LINE.leave() + json.dumps(record, ensure_ascii=False, default=str) + "\n"
        with self._lock, contextlib.suppress(OSError):  # whoever read standard error has gone; the work goes on
            sys.stderr.write(line)
            sys.stderr.flush()


class JsonLines(PlainLines):
    """Progress, log lines and notes as objects: a progress at each new phase, and each second in which it moved."""

    news_every_s = NEWS_EVERY_S

    def __init__(self, log: JsonLog, level: str = "info") -> None:
        super().__init__(level)
        self._log = log
        self._cartridge: str | None = None
        self._phase: str | None = None

    def begin(self, cap: str, call: "Call") -> None:
        self._log.begin(cap, call)

    def progress(self, event: "Progress") -> None:
        self._cartridge, self._phase = event.cartridge, event.phase or self._phase  # as the cartridge spells it
        super().progress(event)
        self.tick()

    def say(self) -> None:
        state = self._state
        self._log.write(
            "progress",
            state.message,
            cartridge=self._cartridge,
            progress=state.fraction,
            phase=self._phase,
            work=state.work,
            total=state.total,
        )

    def log(self, event: "Log") -> None:
        if is_shown(event.level, self._level):
            self._log.write(event.level, event.message, cartridge=event.cartridge)

    def note(self, text: str) -> None:
        self._log.write("info", text)


class JsonSilence(Silence):
    """Shows nothing, for --quiet; but an error at the end still says which call it is about."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log

    def begin(self, cap: str, call: "Call") -> None:
        self._log.begin(cap, call)


class _Handler(logging.Handler):
    """Lines of the engine itself, and of libraries."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        is_cartridge = record.name.startswith(_CARTRIDGE_LOGGER)
        cartridge = record.name.removeprefix(_CARTRIDGE_LOGGER) if is_cartridge else None
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # the arguments do not fit the text: somebody else's mistake
            message = str(record.msg)
        self._log.write(record.levelname.lower(), message, cartridge=cartridge, logger=record.name)


_JSON_LOG: ContextVar[JsonLog | None] = ContextVar("json_log", default=None)


def start_json_log() -> None:
    """From now on the log of this command is JSON."""
    log = JsonLog()
    _JSON_LOG.set(log)
    logging.getLogger().addHandler(_Handler(log))


def json_log() -> JsonLog | None:
    """The log, where --log-json asked for one."""
    return _JSON_LOG.get()
