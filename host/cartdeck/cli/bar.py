"""Owns the bar on a terminal, redrawn in place, and the choice between it and plain lines.

It does not know calls or cartridges, nor when things happen: it is told, and asked to look at the clock.
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from cartdeck.cli.display import Display, PlainLines, Silence, State, harmless, is_shown, log_line
from cartdeck.cli.output import STDOUT

if TYPE_CHECKING:
    from cartdeck.events import Log, Progress

STDERR: Final = 2
REFRESH_S: Final = 0.1

ERASE_LINE: Final = b"\r\x1b[2K"
ERASE_BELOW: Final = b"\x1b[J"
# Makes sure that there is a line below, whatever the cursor's column, and goes there with the old place saved.
GO_BELOW: Final = b"\x1bD\x1bM\x1b7\x1b[1B\r\x1b[2K"
GO_BACK: Final = b"\x1b8"


class TerminalBar:
    """One bar on the terminal, redrawn in place.

    Where standard output goes to the same terminal, the cursor rests at the end of the text and the bar is drawn in
    the line below it: so text can stream above a bar without either spoiling the other.
    """

    def __init__(self, level: str = "info") -> None:
        self._state = State()
        self._level = level
        self._is_below = os.isatty(STDOUT)
        self._is_drawn = False
        self._is_in_line = False  # the text above has not ended its line
        self._line = b""
        self._drawn_at = 0.0
        self._started_at = time.monotonic()

    def progress(self, event: "Progress") -> None:
        is_new = self._state.take(event)
        self._refresh(is_urgent=is_new)

    def tick(self) -> None:
        self._refresh(is_urgent=False)

    def log(self, event: "Log") -> None:
        if is_shown(event.level, self._level):
            self.note(log_line(event))

    def note(self, text: str) -> None:
        line_break = b"\n" if self._is_in_line else b""
        self._is_in_line = False
        self._send(self._erasing() + line_break + harmless(text).encode() + b"\n" + self._drawing())

    def around(self, text: bytes) -> bytes:
        if not self._is_below:
            return text
        if text:
            self._is_in_line = not text.endswith(b"\n")
        if time.monotonic() - self._drawn_at > REFRESH_S:
            self._render()
        return self._erasing() + text + self._drawing()

    def close(self) -> None:
        self._send(self._erasing() + (b"\n" if self._is_in_line else b""))
        self._is_drawn = self._is_in_line = False

    def _refresh(self, *, is_urgent: bool) -> None:
        if is_urgent or time.monotonic() - self._drawn_at > REFRESH_S:
            self._render()
            self._send(self._erasing() + self._drawing())

    def _erasing(self) -> bytes:
        if not self._is_drawn:
            return b""
        return ERASE_BELOW if self._is_below else ERASE_LINE

    def _drawing(self) -> bytes:
        self._is_drawn = bool(self._line)
        if not self._line:
            return b""
        return GO_BELOW + self._line + GO_BACK if self._is_below else ERASE_LINE + self._line

    def _render(self) -> None:
        self._drawn_at = time.monotonic()
        self._line = render_bar(self._state, elapsed_s=self._drawn_at - self._started_at)

    @staticmethod
    def _send(data: bytes) -> None:
        with contextlib.suppress(OSError):  # the terminal has gone; the work goes on
            os.write(STDERR, data)


def render_bar(state: State, *, elapsed_s: float) -> bytes:
    """The bar as one line of the terminal's width."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, force_terminal=True, width=max(20, terminal_width() - 1), legacy_windows=False)
    row = Table.grid(padding=(0, 1), expand=False)
    for ratio in (None, None, None, 1, None, None):
        row.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
    row.add_row(
        Text(state.phase or "starting", style="bold"),
        ProgressBar(total=1.0, completed=state.fraction, width=24),
        Text(f"{state.fraction:4.0%}"),
        Text(harmless(state.message), style="dim"),
        Text(state.amount),
        Text(f"{elapsed_s:.0f} s", style="dim"),
    )
    with console.capture() as capture:
        console.print(row, end="")
    return capture.get().replace("\n", "").encode()


def open_display(*, is_quiet: bool, is_verbose: bool) -> Display:
    """The display that standard error allows."""
    level = "debug" if is_verbose else "info"
    if is_quiet:
        return Silence()
    if os.isatty(STDERR) and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalBar(level)
    return PlainLines(level)


def terminal_width() -> int:
    try:
        return os.get_terminal_size(STDERR).columns
    except OSError:
        return 80
