"""Owns what a step of a plan is before anything is known of its cap: names, wires, constants, settings.

It does not know the notation, nor caps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from cartdeck.near import near_names
from cartdeck.plans.fault import Place, plan_fault

FAIL: Final = "fail"
ABSENT: Final = "absent"
_MOST_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """How a step is run. None leaves it to the run."""

    retry: int | None = None
    """So many further tries of a call that failed with an error that may pass."""
    on_error: str | None = None
    """`fail`: the plan ends. `absent`: the result is missing, and what can do without it goes on."""
    timeout_s: float | None = None
    """The time limit of each call of the step, waiting included."""
    at_once: int | None = None
    """So many items of a mapped step at once."""


SETTINGS: Final = tuple(one.name for one in fields(StepSettings))


def checked_settings(found: Mapping[str, Any], places: Mapping[str, Place] | None = None) -> StepSettings:
    """The settings, each checked. Raises BAD_PLAN."""
    at = places or {}
    for name, value in found.items():
        if name not in SETTINGS:
            near = near_names(name, SETTINGS) or list(SETTINGS)
            message = f"{name} is no setting of a step; there are {', '.join(SETTINGS)}"
            raise plan_fault(message, at.get(name), candidates=near)
        is_whole = type(value) is int
        match name:
            case "retry":
                is_good, wanted = is_whole and 0 <= value <= _MOST_TRIES, f"a whole number from 0 to {_MOST_TRIES}"
            case "at_once":
                is_good, wanted = is_whole and value >= 1, "a whole number from 1"
            case "timeout_s":
                is_good, wanted = (
                    (is_whole or type(value) is float) and 0 < value < 1e9,
                    "seconds, above 0 and below 1e9",
                )
            case _:
                is_good, wanted = value in (FAIL, ABSENT), f"{FAIL} or {ABSENT}"
        if not is_good:
            raise plan_fault(f"{name} is {value!r:.40}; expected {wanted}", at.get(name), candidates=[wanted])
    return StepSettings(**found)


@dataclass(slots=True, kw_only=True)
class Step:
    """One call of a cap, or one for each item of a sequence."""

    name: str
    cap: str
    """The canonical text of the cap's URN."""
    sources: tuple[str, ...] = ()
    """The values that it is given, by their names."""
    target: str | None = None
    """The name of what it gives; None where nothing is wanted of it."""
    sides: dict[str, str] = field(default_factory=dict[str, str])
    """Of the cap's outputs by name those that are wanted, and what each is called as a value."""
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    settings: StepSettings = StepSettings()
    places: dict[str, Place] = field(default_factory=dict[str, Place], compare=False)
    """Where in the text: `step`, `cap`, `target`, `source 0`, `constant NAME`, `side NAME`."""

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it gives: its target, then its side outputs by their names."""
        sides = (value for _, value in sorted(self.sides.items())) if self.sides else ()
        return (*(() if self.target is None else (self.target,)), *sides)

    def place(self, what: str) -> Place | None:
        return self.places.get(what) or self.places.get("step")


def producers_of(steps: Mapping[str, Step]) -> dict[str, str]:
    """Which step gives a value, by the value's name."""
    return {value: step.name for step in steps.values() for value in step.values}


def side_value(step: str, output: str) -> str:
    """What a side output is called that has no name of its own. No other value has a dot in its name."""
    return f"{step}.{output}"
