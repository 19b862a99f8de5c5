"""Owns what a person is told on standard error while a call runs; here as plain lines, for where there is no terminal.

It does not know calls or cartridges, nor when things happen: it is told, and asked to look at the clock.
"""

import contextlib
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cartdeck.cli.output import HARMLESS, STANDARD_LINE

if TYPE_CHECKING:
    from cartdeck.calls.call import Call
    from cartdeck.events import Log, Progress

NEWS_EVERY_S: Final = 30.0
LEVELS: Final = ("debug", "info", "warning", "error")


class Display(Protocol):
    """Where progress and logs are shown."""

    def begin(self, cap: str, call: "Call") -> None:
        """What follows is about this call."""
        ...

    def progress(self, event: "Progress") -> None: ...

    def log(self, event: "Log") -> None: ...

    def note(self, text: str) -> None:
        """Shows a line that stays, or several."""
        ...

    def tick(self) -> None:
        """Called a few times a second: time has passed."""
        ...

    def around(self, text: bytes) -> bytes:
        """What to write to standard output so that `text` appears there and the display stays whole."""
        ...

    def close(self) -> None:
        """Takes the bar away."""
        ...


@dataclass(slots=True)
class State:
    """The last of what was said about the call's progress."""

    fraction: float = 0.0
    phase: str = ""
    message: str = ""
    work: float | None = None
    total: float | None = None

    def take(self, event: "Progress") -> bool:
        """Takes the event in; True when a new phase has begun."""
        phase = (event.phase or self.phase).replace("_", " ")
        is_new = phase != self.phase
        self.phase = phase
        self.fraction = self.fraction if event.fraction is None else event.fraction
        self.message = event.message or ("" if is_new else self.message)
        self.work, self.total = event.work, event.total
        return is_new

    @property
    def amount(self) -> str:
        """What was done of what there is, with the unit that the phase counts in; "" where the message counts."""
        if self.work is None or COUNTED.search(self.message):
            return ""
        if self.phase in BYTE_PHASES:
            if self.total is None:
                return megabytes(self.work)
            return f"{self.work / 1e6:.1f}/{megabytes(self.total)}"
        unit = " tokens" if self.phase in TOKEN_PHASES else ""
        return f"{self.work:g}{unit}" if self.total is None else f"{self.work:g}/{self.total:g}{unit}"


COUNTED: Final = re.compile(r"\d of \d")
BYTE_PHASES: Final = frozenset({"obtain", "download", "unpack", "verify", "load"})
"""Phases whose work is counted in bytes: the wire carries the number alone."""
TOKEN_PHASES: Final = frozenset({"prompt"})
"""In `inference` there may be texts, images or seconds of speech as well: its messages say what is counted."""


def megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


class Silence:
    """Shows nothing: for --quiet."""

    def begin(self, cap: str, call: "Call") -> None:
        pass

    def progress(self, event: "Progress") -> None:
        pass

    def log(self, event: "Log") -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass

    def around(self, text: bytes) -> bytes:
        return text

    def close(self) -> None:
        pass


class PlainLines:
    """One line at each new phase and for each log line; in a long phase one more every half minute."""

    news_every_s = NEWS_EVERY_S

    def __init__(self, level: str = "info") -> None:
        self._state = State()
        self._level = level
        self._said_at = time.monotonic()
        self._said = State()

    def begin(self, cap: str, call: "Call") -> None:
        pass

    def progress(self, event: "Progress") -> None:
        if self._state.take(event):
            self._say()

    def tick(self) -> None:
        if time.monotonic() - self._said_at > self.news_every_s and self._state != self._said:
            self._say()

    def _say(self) -> None:
        state = self._state
        self._said_at = time.monotonic()
        self._said = State(state.fraction, state.phase, state.message, state.work, state.total)
        self.say()

    def say(self) -> None:
        """Shows the state as a line."""
        state = self._state
        words = [
            f"{state.fraction:4.0%} {state.phase}",
            *(part for part in (harmless(state.message), state.amount) if part),
        ]
        self.note(": ".join(words[:2]) + "".join(f" ({part})" for part in words[2:]))

    def log(self, event: "Log") -> None:
        if is_shown(event.level, self._level):
            self.note(log_line(event))

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever read standard error has gone; the work goes on
            print(STANDARD_LINE.leave() + harmless_lines(text), file=sys.stderr, flush=True)

    def around(self, text: bytes) -> bytes:
        return text

    def close(self) -> None:
        pass


def is_shown(level: str, least: str) -> bool:
    """An unknown level is shown: better too much than a lost warning."""
    return level not in LEVELS or LEVELS.index(level) >= LEVELS.index(least)


def log_line(event: "Log") -> str:
    """The line of the log."""
    return message_lines(f"{event.cartridge}: {event.level}", event.message)


def message_lines(head: str, message: str) -> str:
    """A message behind its head; more lines of it, as of a traceback, are set in below it."""
    first, *more = message.rstrip().splitlines() or [""]
    return "\n".join([f"{head}: {first}", *(f"    {line}" for line in more)])


def harmless_lines(text: str) -> str:
    """The text without what a terminal would obey; its lines stay."""
    return text.translate(HARMLESS)


def harmless(text: str) -> str:
    """The text as one line, without what a terminal would obey."""
    return harmless_lines(text).replace("\n", " ")
