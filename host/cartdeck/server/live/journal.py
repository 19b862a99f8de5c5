"""Owns what a server remembers of calls: those that are open and the last that ended, each with its stages and how long
they took.

It does not know where calls run, nor who looks. All of it is bounded: an entry is a handful of numbers and short texts.
"""

import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cartdeck.server.fields import as_record
from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_ENDED: Final = 100
_MOST_SPANS: Final = 16
_MOST_TEXT: Final = 400


class Stage(StrEnum):
    """What a call is at, as a person tells it."""

    QUEUE = "queue"
    OBTAIN = "obtain"
    LOAD = "load"
    FIRST = "first"
    """Computing, and nothing came yet."""
    TOKENS = "tokens"
    """Output is coming."""
    PLAN = "plan"
    """A plan runs, with calls of its own."""


_OF_PHASE: Final = {
    **dict.fromkeys(("queue", "queued", "starting"), Stage.QUEUE),
    **dict.fromkeys(("obtain", "obtaining", "download", "unpack", "verify", "look_up", "lookup"), Stage.OBTAIN),
    **dict.fromkeys(("load", "loading"), Stage.LOAD),
}
"""The phases that cartridges name; any other is one of computing."""


def stage_of(phase: str) -> Stage:
    return _OF_PHASE.get(phase, Stage.FIRST)


@dataclass(slots=True)
class CallEntry:
    """One call. Times are seconds since it began."""

    number: int
    cap: str
    model: str | None
    cartridge: str = ""
    began_at_s: float = field(default_factory=time.time)
    state: str = "open"
    """open, done, failed or cancelled."""
    spans: list[tuple[Stage, float]] = field(default_factory=lambda: [(Stage.QUEUE, 0.0)])
    """Each stage that it came to, and when."""
    ended_s: float | None = None
    message: str = ""
    work: float | None = None
    total: float | None = None
    fraction: float | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    version: int = 0
    """Grows with every change, over all entries of a journal."""
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def stage(self) -> Stage:
        return self.spans[-1][0]

    def enter(self, stage: Stage) -> None:
        """It is at this stage now. One that comes back is a span of its own, as far as there is room."""
        if stage is not self.stage and len(self.spans) < _MOST_SPANS:
            self.spans.append((stage, time.monotonic() - self._began_s))
            self.message, self.work, self.total = "", None, None

    def end(self, state: str) -> None:
        self.state, self.ended_s = state, time.monotonic() - self._began_s
        self.message, self.work, self.total = "", None, None

    def to_plain(self) -> dict[str, Any]:
        """For JSON; `now_s` is how long it has been going on."""
        now_s = time.monotonic() - self._began_s
        return {
            "number": self.number,
            "cap": self.cap,
            "model": self.model,
            "cartridge": self.cartridge,
            "began_at_s": round(self.began_at_s, 3),
            "state": self.state,
            "spans": [[stage.value, round(at_s, 4)] for stage, at_s in self.spans],
            "now_s": round(now_s if self.ended_s is None else self.ended_s, 4),
            "message": self.message,
            "work": self.work,
            "total": self.total,
            "fraction": self.fraction,
            "error": self.error,
            "usage": self.usage,
        }


class Journal:
    """The entries of one server."""

    def __init__(self) -> None:
        self._open: dict[int, CallEntry] = {}
        self._ended: deque[CallEntry] = deque(maxlen=MOST_ENDED)
        self._last = 0
        self.version = 0
        """That of the latest change."""

    @property
    def open_calls(self) -> int:
        return len(self._open)

    def begin(self, cap: str, model: str | None = None) -> CallEntry:
        self._last += 1
        entry = self._open[self._last] = CallEntry(self._last, _cut(cap), None if model is None else _cut(model))
        self.note(entry)
        return entry

    def note(self, entry: CallEntry) -> None:
        """Something of it has changed."""
        self.version += 1
        entry.version = self.version

    def advance(self, entry: CallEntry, stage: Stage) -> None:
        if stage is not entry.stage:
            entry.enter(stage)
            self.note(entry)

    def tell(
        self, entry: CallEntry, message: str, *, fraction: float | None, work: float | None, total: float | None
    ) -> None:
        """How far the stage is."""
        entry.message = _cut(message)
        entry.work, entry.total = work, total
        if fraction is not None:
            entry.fraction = fraction
        self.note(entry)

    def finish(self, entry: CallEntry, provenance: Mapping[str, Any]) -> None:
        usage = as_record(provenance.get("usage"))
        entry.usage = {name: usage[name] for name in ("prompt_tokens", "completion_tokens") if name in usage}
        self._end(entry, "done")

    def fail(self, entry: CallEntry, error: CartdeckError) -> None:
        if entry.ended_s is not None:
            return
        entry.error = {"code": error.code_name, "message": _cut(error.message), "remedy": _cut(error.remedy)}
        self._end(entry, "cancelled" if error.code is Code.CANCELLED else "failed")

    @contextmanager
    def following(self, cap: str) -> Generator[CallEntry]:
        """An entry for what is done inside: a plan, which is no call of its own."""
        entry = self.begin(cap)
        entry.spans = [(Stage.PLAN, 0.0)]
        try:
            yield entry
        except CartdeckError as error:
            self.fail(entry, error)
            raise
        except BaseException:
            self.fail(entry, failure(Code.CANCELLED, "it was given up"))
            raise
        self.finish(entry, {})

    def _end(self, entry: CallEntry, state: str) -> None:
        if self._open.pop(entry.number, None) is not None:
            entry.end(state)
            self._ended.append(entry)
            self.note(entry)

    def since(self, version: int) -> list[CallEntry]:
        """The entries that changed after that version, the oldest first; with 0 all that are remembered."""
        found = [one for one in self._ended if one.version > version]
        return found + [one for one in self._open.values() if one.version > version]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
