"""Owns what is known of a step at its end. It does not know how it came about."""

from dataclasses import dataclass, field
from typing import Any

from cartdeck.plans.convert import Absent
from cartdeck.plans.events import StepState
from cartdeck_protocol.errors import CartdeckError


@dataclass(slots=True)
class StepReport:
    """What is known of a step at the end. `tries` counts calls; `missing` are the items that could not be given."""

    step: str
    state: StepState = StepState.WAITING
    cartridge: str = ""
    error: CartdeckError | None = None
    because: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the last call."""
    items: int = 0
    reused: int = 0
    tries: int = 0
    missing: list[Absent] = field(default_factory=list[Absent])
    seconds: float = 0.0
