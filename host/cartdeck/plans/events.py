"""Owns what a caller sees of a plan that runs: its events. It does not know where they come from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from cartdeck_protocol.errors import CartdeckError


class StepState(StrEnum):
    """Where a step stands. All but the first two are final, and a step has exactly one of those."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REUSED = "reused"
    """Its result was kept from an earlier run."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """It ran when the plan was stopped."""
    SKIPPED = "skipped"
    """It never ran, because of another step."""

    @property
    def is_final(self) -> bool:
        return self not in (StepState.WAITING, StepState.RUNNING)


@dataclass(slots=True)
class StepStarted:
    step: str
    cap: str
    cartridge: str
    is_mapped: bool


@dataclass(slots=True)
class StepProgress:
    """How far a step is, and with it the plan (`overall`, which never falls). What is not known is None.

    `item` is the place of the item that moved last, () for a step that is one call; `fraction` is the step's own, and
    `phase`, `message`, `work` and `total` are what the call of that item said.
    """

    step: str
    item: tuple[int, ...]
    fraction: float
    overall: float
    phase: str | None
    message: str
    work: float | None
    total: float | None
    items_done: int
    items_total: int | None
    cartridge: str


@dataclass(slots=True)
class StepLog:
    """A line of a cartridge about a step, or the engine's word on it while it waits."""

    step: str
    item: tuple[int, ...]
    level: str
    message: str
    cartridge: str


@dataclass(slots=True)
class ItemFailed:
    """An item of a mapped step that goes on without it."""

    step: str
    item: tuple[int, ...]
    error: CartdeckError


@dataclass(slots=True)
class StepEnded:
    """The one end of a step. `because` names the step on whose account it was skipped or cancelled."""

    step: str
    state: StepState
    overall: float
    because: str | None
    error: CartdeckError | None


@dataclass(slots=True)
class PlanEnded:
    """Always the last event. `overall` is 1 only without an error."""

    overall: float
    error: CartdeckError | None


PlanEvent: TypeAlias = StepStarted | StepProgress | StepLog | ItemFailed | StepEnded | PlanEnded
