"""Owns how a fault of a plan is told: the place in the text, the message, the candidates.

It does not know the notation, nor what was wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_FAULTS: Final = 100
"""So many faults of one kind are told."""


class Place(NamedTuple):
    """A place in a plan's text, both counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


def plan_fault(
    message: str,
    place: Place | None,
    *,
    code: Code = Code.BAD_PLAN,
    candidates: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
) -> CartdeckError:
    """The error for a fault at `place` (None for a plan that was not read from text); raise what it returns.

    Its `details` have `line`, `column` and `candidates` as far as there are any.
    """
    found = dict(details or {})
    if place is not None:
        message = f"{place}: {message}"
        found |= {"line": place.line, "column": place.column}
    if candidates:
        found["candidates"] = list(candidates)
    return failure(code, message, details=found)


def place_of(fault: CartdeckError) -> Place | None:
    """Where in the text a fault is, if it has a place."""
    line, column = fault.details.get("line"), fault.details.get("column")
    return None if line is None else Place(int(line), int(column or 0))


def in_text_order(faults: Iterable[CartdeckError]) -> list[CartdeckError]:
    """The faults as they come in the text, one for each place; those without a place behind the others."""
    taken: set[Place | None] = set()
    found: list[CartdeckError] = []
    for fault in sorted(faults, key=_order):
        place = place_of(fault)
        if place is None or place not in taken:
            found.append(fault)
        taken.add(place)
    return found


def earliest(faults: Iterable[CartdeckError]) -> CartdeckError:
    """The fault that comes first in the text; one without a place behind those that have one."""
    return min(faults, key=_order)


def _order(fault: CartdeckError) -> tuple[bool, Place]:
    place = place_of(fault)
    return place is None, place or Place(0, 0)


def at_place(error: CartdeckError, place: Place | None, *, step: str, candidates: Sequence[str] = ()) -> CartdeckError:
    """An error that a step's cap or argument met elsewhere, with its place in the plan; and with `candidates` where it
    brings none of its own."""
    where = f"{place}: " if place is not None else ""
    details: dict[str, Any] = {**error.details, "step": step}
    if place is not None:
        details |= {"line": place.line, "column": place.column}
    found = error.details.get("near") or error.details.get("known") or list(candidates)
    if found and "candidates" not in details:
        details["candidates"] = found
    return failure(error.code, f"{where}step {step}: {error.message}", argument=error.argument, details=details)
