"""Owns the steps of a job, and which part of its one progress each of them is.

It does not know what is done in them.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from cartdeck_protocol.errors import CartdeckError


class Step(Enum):
    """A step: its name, what is done in it, and where in the job's progress it begins."""

    REGISTRY = ("registry", "Asking the registry", 0.0)
    PLAN = ("plan", "Choosing a file", 0.04)
    DOWNLOAD = ("download", "Fetching and verifying", 0.08)
    HEADER = ("header", "Reading what the model says of itself", 0.70)
    ENTRY = ("entry", "Checking the catalog's entry", 0.73)
    START = ("start", "Starting the model", 0.75)
    SMOKE_TEST = ("smoke-test", "Asking the model", 0.88)
    CATALOG = ("catalog", "Writing the catalog", 0.98)

    def __init__(self, label: str, title: str, base: float) -> None:
        self.label = label
        self.title = title
        self.base = base

    @property
    def end(self) -> float:
        """Where the next one begins."""
        steps = list(Step)
        place = steps.index(self) + 1
        return steps[place].base if place < len(steps) else 1.0

    def at(self, fraction: float) -> float:
        """The job's progress when so much of the step is done."""
        return self.base + min(max(fraction, 0.0), 1.0) * (self.end - self.base)


@dataclass(frozen=True, slots=True)
class StepBegan:
    step: Step
    overall: float


@dataclass(slots=True)
class StepProgress:
    """The latest of a step: `overall` never falls. `work` of `total` is counted in bytes or tokens of `phase`."""

    step: Step
    overall: float
    phase: str | None
    message: str
    work: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class StepEnded:
    """What came of a step, in words and as a record, and how long it took."""

    step: Step
    overall: float
    seconds: float
    text: str
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last event. With an error the job failed, and `step` is where."""

    overall: float
    seconds: float
    error: CartdeckError | None = None
    step: Step | None = None


JobEvent: TypeAlias = StepBegan | StepProgress | StepEnded | JobEnded
