"""Owns the bar on a terminal, redrawn in place, and the choice between it and plain lines.

It does not know calls or cartridges, nor when things happen: it is told, and asked to look at the clock.
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from cartdeck.cli.display import Display, PlainLines, Silence, State, harmless, harmless_lines, is_shown, log_line
from cartdeck.cli.json_log import JsonLines, JsonSilence, json_log
from cartdeck.cli.output import STANDARD_LINE, STDERR, STDOUT

if TYPE_CHECKING:
    from cartdeck.calls.call import Call
    from cartdeck.events import Log, Progress

REFRESH_S: Final = 0.1
ECHO_WIDTH: Final = 2
"""Columns of the `^C` that a terminal writes behind a bar: if it went on in the next line, the bar would stay."""

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
        self._text_end = TextEnd()
        self._line = b""
        self._drawn_at = 0.0
        self._started_at = time.monotonic()

    def begin(self, cap: str, call: "Call") -> None:
        pass

    def progress(self, event: "Progress") -> None:
        is_new = self._state.take(event)
        self._refresh(is_urgent=is_new)

    def tick(self) -> None:
        self._refresh(is_urgent=False)

    def log(self, event: "Log") -> None:
        if is_shown(event.level, self._level):
            self.note(log_line(event))

    def note(self, text: str) -> None:
        self._send(
            self._erasing() + self._text_end.end_line() + harmless_lines(text).encode() + b"\n" + self._drawing()
        )

    def around(self, text: bytes) -> bytes:
        if not self._is_below:
            return text
        text += self._text_end.follow(text)
        if time.monotonic() - self._drawn_at > REFRESH_S:
            self._render()
        return self._erasing() + text + self._drawing()

    def close(self) -> None:
        self._send(self._erasing() + self._text_end.end_line())
        self._is_drawn = False
        if self._is_below:
            STANDARD_LINE.was_ended()

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


class TextEnd:
    """Follows the cursor through the text that is written, so that the bar never stands in its way.

    A terminal that has filled a line wraps only when the next character comes, and forgets that when the cursor goes
    elsewhere in between: the character would overwrite the last one of the line.
    """

    def __init__(self) -> None:
        self._column = 0

    def follow(self, text: bytes) -> bytes:
        """What must follow `text` so that the cursor stands where the next character belongs."""
        from rich.cells import get_character_cell_size

        width = terminal_width()
        for character in text.decode():
            if character == "\n":
                self._column = 0
            elif character == "\t":
                self._column = min(width - 1, self._column // 8 * 8 + 8)
            else:
                size = get_character_cell_size(character)
                self._column = size if self._column + size > width else self._column + size
        if self._column < width:
            return b""
        self._column = 0
        return b" \r"  # the space wraps the line now, and the cursor goes back before it

    def end_line(self) -> bytes:
        """What ends the line of the text, where it has not ended."""
        is_open, self._column = self._column > 0, 0
        return b"\n" if is_open else b""


def render_bar(state: State, *, elapsed_s: float) -> bytes:
    """The bar as one line of the terminal's width."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = max(20, terminal_width() - ECHO_WIDTH - 1)
    phase, percent, elapsed = state.phase or "starting", f"{state.fraction:4.0%}", f"{elapsed_s:.0f} s"
    left = width - sum(len(part) + 1 for part in (phase, percent, state.amount, elapsed))
    bar_width = max(4, min(24, left // 2))
    row = [
        Text(phase, style="bold"),
        ProgressBar(total=1.0, completed=state.fraction, width=bar_width),
        Text(percent),
        Text(clipped(harmless(state.message), max(0, left - bar_width - 1)), style="dim"),
        Text(state.amount),
        Text(elapsed, style="dim"),
    ]
    grid = Table.grid(*("" for _ in row), padding=(0, 1, 0, 0), pad_edge=False)
    for column in grid.columns:
        column.no_wrap = True
    grid.add_row(*row)
    console = Console(stderr=True, force_terminal=True, width=width)
    with console.capture() as capture:
        console.print(grid, end="")
    return capture.get().replace("\n", "").rstrip().encode()


def clipped(text: str, width: int) -> str:
    """The beginning of the text, with a sign where more would follow: half a number must not pass for a whole one."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]


def open_display(*, is_quiet: bool, is_verbose: bool) -> Display:
    """The display that was asked for, or that standard error allows."""
    level = "debug" if is_verbose else "info"
    log = json_log()
    if is_quiet:
        return Silence() if log is None else JsonSilence(log)
    if log is not None:
        return JsonLines(log, level)
    if os.isatty(STDERR) and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalBar(level)
    return PlainLines(level)


def terminal_width() -> int:
    """Columns of the terminal; 80 where it does not know its size, which it says as an error or as 0."""
    try:
        return os.get_terminal_size(STDERR).columns or 80
    except OSError:
        return 80
