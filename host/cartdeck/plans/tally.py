"""Owns the progress of a plan: the sum of its steps' progress ÷ n, and of a mapped step the same over its items.

It does not know calls or events.
"""

from typing import Final

_BELOW_ONE: Final = 1 - 1e-9
_LOOKS: Final = 1000


class PlanTally:
    """The whole. `overall` never falls, and stays below 1 until `succeed`."""

    def __init__(self, steps: int) -> None:
        self._steps = max(1, steps)
        self._sum = 0.0
        self.overall = 0.0

    def move(self, delta: float) -> None:
        self._sum += delta
        self.overall = max(self.overall, min(self._sum / self._steps, _BELOW_ONE))

    def succeed(self) -> None:
        self.overall = 1.0


class StepTally:
    """One step: a single item, or as many as `set_count` says. Without a count nothing is known of a mapped step."""

    __slots__ = ("_plan", "_stride", "_sum", "count", "done", "fraction")

    def __init__(self, plan: PlanTally, count: int | None) -> None:
        self._plan = plan
        self.count = count
        self.done = 0
        self._stride = 1
        """The sum of many items is looked at once for so many of them."""
        self._sum = 0.0
        self.fraction = 0.0

    def set_count(self, count: int) -> None:
        self.count = count
        self._stride = max(1, count // _LOOKS)
        self._update()

    def advance(self, delta: float) -> None:
        """An item moved on by `delta`, of 1 in all."""
        self._sum += delta
        self._update()

    def item_ended(self, rest: float) -> None:
        """An item is through; `rest` was missing to its 1."""
        self.done += 1
        self._sum += rest
        if not self.done % self._stride:
            self._update()

    def end(self) -> None:
        """The step is through, whatever its items said."""
        self._set(1.0)

    def _update(self) -> None:
        if self.count:
            self._set(min(1.0, self._sum / self.count))

    def _set(self, fraction: float) -> None:
        if fraction > self.fraction:
            self._plan.move(fraction - self.fraction)
            self.fraction = fraction
