"""Owns what is shown of each step of a plan, and how the tree of them looks on a terminal.

It does not know when it is drawn.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cartdeck.cli.bar import terminal_width
from cartdeck.cli.display import TOKEN_PHASES, harmless
from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.events import PlanEvent, StepEnded, StepProgress, StepStarted, StepState

if TYPE_CHECKING:
    from rich.table import Table

_MARKS: Final = {
    StepState.WAITING: "·", StepState.RUNNING: "●", StepState.DONE: "✓", StepState.REUSED: "↺",
    StepState.FAILED: "✗", StepState.CANCELLED: "-", StepState.SKIPPED: "-",
}  # fmt: skip
_STYLES: Final = {
    StepState.RUNNING: "bold", StepState.DONE: "green", StepState.REUSED: "green", StepState.FAILED: "red",
}  # fmt: skip
_DEEPEST: Final = 8


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
    items_missing: int = 0
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
        if self.items_missing:
            words.append(f"{self.items_missing} missing")
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


def render_tree(rows: dict[str, Row], overall: float, *, elapsed_s: float, most: int) -> "Table":
    """The tree as a table. Of more steps than fit, those that run are shown, then those that are to come."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = max(6, min(20, terminal_width() // 5))
    table = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(5):
        table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column()  # what could be wrapped is cut first: a long note must not take the others' room
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
            Text(row.note, style="dim", no_wrap=True, overflow="ellipsis"),
        )
    return table
