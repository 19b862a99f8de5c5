"""Owns what a person sees while a plan runs: a live tree of its steps on a terminal, plain or JSON lines elsewhere.

It does not know calls: it is told events, and asked to look at the clock.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from cartdeck.cli.bar import ECHO_WIDTH, TerminalBar, terminal_width
from cartdeck.cli.display import harmless_lines, is_shown, message_lines
from cartdeck.cli.json_log import JsonLog, json_log
from cartdeck.cli.output import STANDARD_LINE, STDERR
from cartdeck.cli.plan_tree import Row, render_tree, rows_of
from cartdeck.events import Progress
from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.events import (
    ItemFailed,
    PlanEnded,
    PlanEvent,
    StepEnded,
    StepLog,
    StepProgress,
    StepStarted,
    StepState,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_REFRESH_S: Final = 0.1
_NEWS_EVERY_S: Final = 30.0
_OTHER_LINES: Final = 4


class PlanView(Protocol):
    def begin(self, plan: CompiledPlan) -> None: ...

    def take(self, event: PlanEvent) -> None: ...

    def tick(self) -> None: ...

    def around(self, text: bytes) -> bytes:
        """`text`, which is to be written to the terminal, with what keeps the view from standing in its way."""
        ...

    def close(self) -> None: ...

    def tell(self, text: str, **more: Any) -> None:
        """Say what came of it, once closed."""
        ...


class LiveTree:
    """The tree on a terminal, redrawn in place, with the whole plan's bar on top. It is taken away at the end; where
    the plan's output comes to the same terminal, it gives way to one bar below that."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._rows: dict[str, Row] = {}
        self._overall = 0.0
        self._drawn_at = 0.0
        self._started_at = time.monotonic()
        self._live: Live | None = None
        self._console: Console | None = None
        self._bar: TerminalBar | None = None

    def begin(self, plan: CompiledPlan) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows = rows_of(plan)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        self._draw()

    def take(self, event: PlanEvent) -> None:
        match event:
            case StepLog():
                if is_shown(event.level, self._level):
                    self._print(message_lines(f"{event.step}: {event.level}", event.message))
            case ItemFailed():
                self._rows[event.step].items_missing += 1
                self._print(f"{event.step}: item {_place(event.item)} is missing: {event.error}")
            case PlanEnded():
                self._overall = event.overall
            case _:
                self._overall = max(self._overall, getattr(event, "overall", 0.0))
                row = self._rows[event.step]
                row.take(event, time.monotonic())
                if self._bar is not None:
                    words = ", ".join(part for part in (row.note, row.amount) if part)
                    self._bar.progress(Progress(self._overall, words, row.name, None, None, row.cartridge))
        self.tick()

    def tick(self) -> None:
        if self._bar is not None:
            self._bar.tick()
        elif time.monotonic() - self._drawn_at > _REFRESH_S:
            self._draw()

    def around(self, text: bytes) -> bytes:
        if self._bar is None:
            self._take_away()
            self._bar = TerminalBar(self._level)
            self._bar.progress(Progress(self._overall, "", "plan", None, None, ""))
        return self._bar.around(text)

    def close(self) -> None:
        self._take_away()
        if self._bar is not None:
            self._bar.close()

    def tell(self, text: str, **more: Any) -> None:
        _print_line(text)

    def _take_away(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.note(text)
        elif self._console is not None:
            self._console.print(harmless_lines(text), markup=False, highlight=False)

    def _draw(self) -> None:
        from rich.constrain import Constrain

        self._drawn_at = time.monotonic()
        if self._live is not None and self._console is not None:
            most = max(4, self._console.height - _OTHER_LINES)
            elapsed_s = self._drawn_at - self._started_at
            tree = render_tree(self._rows, self._overall, elapsed_s=elapsed_s, most=most)
            self._live.update(Constrain(tree, max(20, terminal_width() - ECHO_WIDTH - 1)), refresh=True)


class PlanLines:
    """One line for each step that begins or ends, and for log lines; in between one every half minute."""

    def __init__(self, level: str, log: JsonLog | None) -> None:
        self._level = level
        self._log = log
        self._rows: dict[str, Row] = {}
        self._overall = 0.0
        self._said_at = time.monotonic()

    def begin(self, plan: CompiledPlan) -> None:
        self._rows = rows_of(plan)

    def take(self, event: PlanEvent) -> None:
        match event:
            case StepLog():
                if is_shown(event.level, self._level):
                    head = event.step if self._log else f"{event.step}: {event.level}"
                    self._say(event.level, message_lines(head, event.message), event.cartridge, step=event.step)
            case ItemFailed():
                self._rows[event.step].items_missing += 1
                text = f"{event.step}: item {_place(event.item)} is missing: {event.error}"
                self._say("warning", text, None, step=event.step, item=list(event.item))
            case StepProgress():
                self._overall = event.overall
                self._rows[event.step].take(event, time.monotonic())
            case StepStarted() | StepEnded():
                row = self._rows[event.step]
                row.take(event, time.monotonic())
                self._overall = max(self._overall, getattr(event, "overall", 0.0))
                word = "started" if isinstance(event, StepStarted) else row.note
                amount = f" ({row.amount})" if row.amount and row.state.is_final else ""
                text = f"{self._overall:4.0%} {row.name} on {row.cartridge}: {word}{amount}"
                self._say("info", text, row.cartridge, step=row.name, state=row.state.value, progress=self._overall)
            case PlanEnded():
                pass

    def tick(self) -> None:
        if time.monotonic() - self._said_at > _NEWS_EVERY_S:
            running = [row.name for row in self._rows.values() if row.state is StepState.RUNNING]
            self._say("info", f"{self._overall:4.0%} running: {', '.join(running[:5])}", None, progress=self._overall)

    def around(self, text: bytes) -> bytes:
        return text

    def close(self) -> None:
        pass

    def tell(self, text: str, **more: Any) -> None:
        self._say("info", text, None, **more)

    def _say(self, level: str, text: str, cartridge: str | None, **more: Any) -> None:
        self._said_at = time.monotonic()
        if self._log is not None:
            self._log.write(level, text, cartridge=cartridge, **more)
        else:
            _print_line(text)


class NoView:
    """Shows nothing: for --quiet."""

    def begin(self, plan: CompiledPlan) -> None:
        pass

    def take(self, event: PlanEvent) -> None:
        pass

    def tick(self) -> None:
        pass

    def around(self, text: bytes) -> bytes:
        return text

    def close(self) -> None:
        pass

    def tell(self, text: str, **more: Any) -> None:
        pass


def open_view(*, is_quiet: bool, is_verbose: bool) -> PlanView:
    """The view that was asked for, or that standard error allows."""
    level, log = "debug" if is_verbose else "info", json_log()
    if is_quiet:
        return NoView()
    if log is None and os.isatty(STDERR) and os.environ.get("TERM", "dumb") != "dumb":
        return LiveTree(level)
    return PlanLines(level, log)


def _print_line(text: str) -> None:
    print(STANDARD_LINE.leave() + harmless_lines(text), file=sys.stderr, flush=True)


def _place(item: tuple[int, ...]) -> str:
    return ".".join(map(str, item))
