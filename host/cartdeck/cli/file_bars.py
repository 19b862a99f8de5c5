"""Owns the bars of a transfer on a terminal: one for each file that is on its way, and one for all of it.

It does not know calls or cartridges: it is told. Nothing is written to standard output while the bars are there.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cartdeck.cli.bar import ECHO_WIDTH, REFRESH_S, render_bar, terminal_width
from cartdeck.cli.display import Display, State, harmless, harmless_lines, is_shown, log_line
from cartdeck.cli.output import STDERR
from cartdeck.size import size_text

if TYPE_CHECKING:
    from cartdeck.calls.call import Call
    from cartdeck.events import Log, Progress

MOST_BARS: Final = 8
UP_AND_ERASE: Final = b"\x1b[%dA\r\x1b[J"
ERASE: Final = b"\r\x1b[J"


class FileBars:
    """A bar for each unfinished file above the one for all, redrawn in place; a finished file leaves a line behind."""

    def __init__(self, level: str = "info") -> None:
        self._state = State()
        self._files: dict[str, tuple[float, float | None]] = {}
        self._finished: set[str] = set()
        self._level = level
        self._lines = 0
        self._drawn_at = 0.0
        self._started_at = time.monotonic()

    def begin(self, cap: str, call: "Call") -> None:
        pass

    def progress(self, event: "Progress") -> None:
        is_new = self._state.take(event)
        self._refresh(is_urgent=is_new)

    def file(self, record: Mapping[str, Any]) -> None:
        """One file moved: `path`, `work` and `total` in bytes, and whether it `is_done`."""
        path = str(record["path"])
        if record.get("is_done"):
            self._files.pop(path, None)
            if path not in self._finished:
                self._finished.add(path)
                self.note(f"{path}: {size_text(float(record['work']))}")
        else:
            self._files[path] = (float(record["work"]), record.get("total"))
            self._refresh(is_urgent=False)

    def tick(self) -> None:
        self._refresh(is_urgent=False)

    def log(self, event: "Log") -> None:
        if is_shown(event.level, self._level):
            self.note(log_line(event))

    def note(self, text: str) -> None:
        self._send(self._erasing() + harmless_lines(text).encode() + b"\n" + self._drawing())

    def around(self, text: bytes) -> bytes:
        return text

    def close(self) -> None:
        self._send(self._erasing())

    def _refresh(self, *, is_urgent: bool) -> None:
        if is_urgent or time.monotonic() - self._drawn_at > REFRESH_S:
            self._send(self._erasing() + self._drawing())

    def _erasing(self) -> bytes:
        lines, self._lines = self._lines, 0
        if lines > 1:
            return UP_AND_ERASE % (lines - 1)
        return ERASE if lines else b""

    def _drawing(self) -> bytes:
        self._drawn_at = time.monotonic()
        room = min(MOST_BARS, shutil.get_terminal_size().lines // 2)  # what was said before stays in sight
        bars = [file_bar(path, work, total) for path, (work, total) in list(self._files.items())[:room]]
        if len(self._files) > room:
            bars.append(f"and {len(self._files) - room} more".encode())
        state = self._state
        if bars:  # they name the files; the message's end has the bytes, the rate and the time left
            state = replace(state, message=state.message.rpartition(": ")[2])
        bars.append(render_bar(state, elapsed_s=self._drawn_at - self._started_at))
        self._lines = len(bars)
        return b"\n".join(bars)

    @staticmethod
    def _send(data: bytes) -> None:
        with contextlib.suppress(OSError):  # the terminal has gone; the work goes on
            os.write(STDERR, data)


def file_bar(path: str, work: float, total: float | None) -> bytes:
    """The bar of one file as one line of the terminal's width; the end of a long path is what tells files apart."""
    state = State(phase="download", fraction=work / total if total else 0.0, work=work, total=total)
    amount = state.amount
    width = max(20, terminal_width() - ECHO_WIDTH - 1)
    name_width = max(8, width - len(amount) - 34)
    name = harmless(path)
    name = name if len(name) <= name_width else "…" + name[1 - name_width :]
    filled = round(24 * min(1.0, state.fraction))
    line = f"{name:<{name_width}} {'━' * filled}{' ' * (24 - filled)} {state.fraction:4.0%} {amount}"
    return line[:width].encode()


def show_file(display: Display, record: Mapping[str, Any]) -> None:
    """Tell `display` of one file's progress: a bar where it has bars, else a line once the file is whole."""
    if isinstance(display, FileBars):
        display.file(record)
    elif record.get("is_done"):
        display.note(f"{record['path']}: {size_text(float(record['work']))}")
