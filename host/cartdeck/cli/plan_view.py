"""Owns what a person sees while a plan runs: a live tree of its steps on a terminal, plain or JSON lines elsewhere.

It does not know calls: it is told events, and asked to look at the clock.
"""

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from cartdeck.cli.bar import ECHO_WIDTH, terminal_width
from cartdeck.cli.display import TOKEN_PHASES, harmless, is_shown
from cartdeck.cli.json_log import JsonLog, json_log
from cartdeck.cli.output import STDERR
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
    from rich.table import Table

_MARKS: Final = {
    StepState.WAITING: "·", StepState.RUNNING: "●", StepState.DONE: "✓", StepState.REUSED: "↺",
    StepState.FAILED: "✗", StepState.CANCELLED: "-", StepState.SKIPPED: "-",
}  # fmt: skip
_STYLES: Final = {
    StepState.RUNNING: "bold", StepState.DONE: "green", StepState.REUSED: "green", StepState.FAILED: "red",
}  # fmt: skip
_REFRESH_S: Final = 0.1
_NEWS_EVERY_S: Final = 30.0
_DEEPEST: Final = 8
_OTHER_LINES: Final = 4


class PlanView(Protocol):
    def begin(self, plan: CompiledPlan) -> None: ...

    def take(self, event: PlanEvent) -> None: ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Row:
    """What is shown of one step."""

    name: str
    cartridge: str
    depth: int
    state: StepState = StepState.WAITING
    fraction: float = 0.0
    items_done: int = 0
    items_total: int | None = None
    is_mapped: bool = False
    phase: str = ""
    message: str = ""
    work: float | None = None
    rate: float | None = None
    because: str | None = None
    _work_at: tuple[float, float] | None = None

    def take(self, event: PlanEvent, now_s: float) -> None:
        match event:
            case StepStarted():
                self.state, self.is_mapped = StepState.RUNNING, event.is_mapped
            case StepProgress():
                self.fraction = event.fraction
                self.items_done, self.items_total = event.items_done, event.items_total
                self.phase = (event.phase or self.phase).replace("_", " ")
                self.message = event.message or self.message
                self._measure(event, now_s)
            case StepEnded():
                self.state, self.because = event.state, event.because
                if event.state in (StepState.DONE, StepState.REUSED):
                    self.fraction = 1.0
            case _:
                pass

    def _measure(self, event: StepProgress, now_s: float) -> None:
        """Tokens per second, of the call that speaks."""
        if event.work is None or event.phase not in TOKEN_PHASES:
            return
        if self._work_at is None or event.work < self._work_at[1]:
            self._work_at = (now_s, event.work)
        elif now_s - self._work_at[0] > 0.2:
            self.rate = (event.work - self._work_at[1]) / (now_s - self._work_at[0])

    @property
    def amount(self) -> str:
        words: list[str] = []
        if self.is_mapped:
            words.append(f"{self.items_done}/{'?' if self.items_total is None else self.items_total} items")
        if self.rate:
            words.append(f"{self.rate:.1f} tokens/s")
        return ", ".join(words)

    @property
    def note(self) -> str:
        if self.state is StepState.RUNNING:
            return harmless(": ".join(part for part in (self.phase, self.message) if part))
        return self.state.value + (f" because of {self.because}" if self.because else "")


def rows_of(plan: CompiledPlan) -> dict[str, Row]:
    """A row for each step, set in as deep as its longest way from an input."""
    rows: dict[str, Row] = {}
    for name, step in plan.steps.items():
        producers = [plan.values[source].producer for source in step.step.sources]
        depth = max((rows[one].depth + 1 for one in producers if one is not None), default=0)
        rows[name] = Row(name, step.route.cartridge.name, depth, is_mapped=bool(step.loops))
    return rows


class LiveTree:
    """The tree on a terminal, redrawn in place, with the whole plan's bar on top. It is taken away at the end."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._rows: dict[str, Row] = {}
        self._overall = 0.0
        self._drawn_at = 0.0
        self._started_at = time.monotonic()
        self._live: Live | None = None
        self._console: Console | None = None

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
                    self._print(f"{event.step}: {event.level}: {event.message}")
            case ItemFailed():
                self._print(f"{event.step}: item {_place(event.item)} is missing: {event.error}")
            case PlanEnded():
                self._overall = event.overall
            case _:
                self._overall = max(self._overall, getattr(event, "overall", 0.0))
                self._rows[event.step].take(event, time.monotonic())
        self.tick()

    def tick(self) -> None:
        if time.monotonic() - self._drawn_at > _REFRESH_S:
            self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(harmless(text), markup=False, highlight=False)

    def _draw(self) -> None:
        from rich.constrain import Constrain

        self._drawn_at = time.monotonic()
        if self._live is not None and self._console is not None:
            most = max(4, self._console.height - _OTHER_LINES)
            elapsed_s = self._drawn_at - self._started_at
            tree = render_tree(self._rows, self._overall, elapsed_s=elapsed_s, most=most)
            self._live.update(Constrain(tree, max(20, terminal_width() - ECHO_WIDTH - 1)), refresh=True)


def render_tree(rows: dict[str, Row], overall: float, *, elapsed_s: float, most: int) -> "Table":
    """The tree as a table. Of more steps than fit, those that run are shown, then those that are to come."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = max(6, min(20, terminal_width() // 5))
    table = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(6):
        table.add_column(no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=1.0, completed=overall, width=width)
    done = sum(1 for row in rows.values() if row.state.is_final)
    count = Text(f"{done}/{len(rows)} steps")
    table.add_row(Text("plan", style="bold"), bar, Text(f"{overall:4.0%}"), count, Text(""), Text(f"{elapsed_s:.0f} s"))
    shown = [*rows.values()]
    if len(shown) > most:
        order = {StepState.RUNNING: 0, StepState.FAILED: 0, StepState.WAITING: 1}
        kept = sorted(shown, key=lambda row: order.get(row.state, 2))[:most]
        names = {row.name for row in kept}
        shown = [row for row in shown if row.name in names]
    for row in shown:
        branch = "  " * min(row.depth, _DEEPEST)
        table.add_row(
            Text(f"{branch}{_MARKS[row.state]} {row.name}", style=_STYLES.get(row.state, "dim")),
            ProgressBar(total=1.0, completed=row.fraction, width=width),
            Text(f"{row.fraction:4.0%}"),
            Text(row.amount),
            Text(row.cartridge, style="dim"),
            Text(row.note, style="dim"),
        )
    return table


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
                    self._say(event.level, f"{event.step}: {event.message}", event.cartridge, step=event.step)
            case ItemFailed():
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

    def close(self) -> None:
        pass

    def _say(self, level: str, text: str, cartridge: str | None, **more: Any) -> None:
        self._said_at = time.monotonic()
        if self._log is not None:
            self._log.write(level, text, cartridge=cartridge, **more)
        else:
            print(harmless(text), file=sys.stderr, flush=True)


class NoView:
    """Shows nothing: for --quiet."""

    def begin(self, plan: CompiledPlan) -> None:
        pass

    def take(self, event: PlanEvent) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_view(*, is_quiet: bool, is_verbose: bool) -> PlanView:
    """The view that was asked for, or that standard error allows."""
    level, log = "debug" if is_verbose else "info", json_log()
    if is_quiet:
        return NoView()
    if log is None and os.isatty(STDERR) and os.environ.get("TERM", "dumb") != "dumb":
        return LiveTree(level)
    return PlanLines(level, log)


def _place(item: tuple[int, ...]) -> str:
    return ".".join(map(str, item))
