"""Owns how a fault of a plan is told: the place in the text, the message, the candidates.

It does not know the notation, nor what was wrong.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cartdeck_protocol.errors import CartdeckError, Code, failure


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


def earliest(faults: Sequence[CartdeckError]) -> CartdeckError:
    """The fault that comes first in the text; one without a place behind those that have one."""

    def place(one: CartdeckError) -> tuple[bool, int, int]:
        line, column = one.details.get("line"), one.details.get("column")
        return line is None, int(line or 0), int(column or 0)

    return min(faults, key=place)


def at_place(error: CartdeckError, place: Place | None, *, step: str) -> CartdeckError:
    """An error that a step's cap or argument met elsewhere, with its place in the plan."""
    where = f"{place}: " if place is not None else ""
    details: dict[str, Any] = {**error.details, "step": step}
    if place is not None:
        details |= {"line": place.line, "column": place.column}
    candidates = error.details.get("near") or error.details.get("known")
    if candidates and "candidates" not in details:
        details["candidates"] = candidates
    return failure(error.code, f"{where}step {step}: {error.message}", argument=error.argument, details=details)
