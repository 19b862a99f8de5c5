"""Owns the arithmetic of progress: spans inside spans, clamping, what never falls, and steps.

It does not know a clock, nor who reports what to whom.
"""

from dataclasses import dataclass

_ROUNDING = 1e-9


def clamp(value: float | None) -> float | None:
    """`value` inside [0, 1]; not-a-number becomes 0; None, which means "not known", stays None."""
    return None if value is None else _inside(value)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a whole progress: it begins at `base` and is `weight` long, both fractions of the whole.

    Raises ValueError for a span that does not lie inside [0, 1].
    """

    base: float
    weight: float

    def __post_init__(self) -> None:
        if not (0 <= self.base <= 1 and 0 <= self.weight <= 1 and self.base + self.weight <= 1 + _ROUNDING):
            raise ValueError(f"a span lies inside [0, 1]; found base {self.base} and weight {self.weight}")

    @property
    def end(self) -> float:
        return _inside(self.base + self.weight)

    def at(self, fraction: float) -> float:
        """Where the whole stands when this part is at `fraction`: base + clamp(fraction) * weight."""
        return _inside(self.base + _inside(fraction) * self.weight)

    def within(self, outer: "Span") -> "Span":
        """This span of a part that is itself `outer` of a larger whole, as a span of that whole."""
        base = outer.at(self.base)
        return Span(base, max(0.0, min(self.weight * outer.weight, 1 - base)))


WHOLE = Span(0.0, 1.0)
OBTAINING = Span(0.0, 0.25)
LOADING = Span(0.25, 0.10)
INFERENCE = Span(0.35, 0.60)
"""A model call's three phases. The rest, up to 1, comes with END."""


class RunningMaximum:
    """The largest progress so far, so that what is shown never falls."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def advance(self, value: float | None) -> float:
        """Take in a new value (clamped; None changes nothing) and return the largest so far."""
        if value is not None:
            self.value = max(self.value, _inside(value))
        return self.value


class StepLimiter:
    """Says which of many fractions are worth a report: the first, each step further, and the end, once.

    A fraction that is not larger than the last one reported is never due.
    """

    __slots__ = ("_last", "step")

    def __init__(self, step: float) -> None:
        if not 0 < step <= 1:
            raise ValueError(f"a step lies in (0, 1]; found {step}")
        self.step = step
        self._last: float | None = None

    def is_due(self, fraction: float) -> bool:
        """Whether to report `fraction`; if so it is remembered as reported."""
        fraction = _inside(fraction)
        if self._last is not None:
            moved = fraction - self._last
            if moved <= 0 or (moved < self.step - _ROUNDING and fraction < 1):
                return False
        self._last = fraction
        return True


def steps_of(step: float) -> StepLimiter:
    """A limiter that lets a report through at each `step`: `steps_of(0.05)` at every 5 %."""
    return StepLimiter(step)


def _inside(value: float) -> float:
    if value >= 1:
        return 1.0
    return float(value) if value > 0 else 0.0
