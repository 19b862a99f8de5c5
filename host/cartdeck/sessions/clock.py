"""Owns the time that limits are measured in: the time in which the engine's loop turned.

It does not know the limits. A loop that was held (a blocked thread, a stopped process, a suspended machine) heard
nothing meanwhile, and nobody else is to blame for that.
"""

from typing import Final

_MOST_TICKS: Final = 2.0


class Clock:
    """`now_s` moves with each tick, at most two ticks' worth at once. As coarse as the ticks, and free to read."""

    __slots__ = ("_last_s", "_most_s", "now_s")

    def __init__(self, loop_time_s: float, *, tick_s: float) -> None:
        self.now_s = 0.0
        self._last_s = loop_time_s
        self._most_s = tick_s * _MOST_TICKS

    def tick(self, loop_time_s: float) -> float:
        """The loop turned: the new `now_s`."""
        self.now_s += min(max(0.0, loop_time_s - self._last_s), self._most_s)
        self._last_s = loop_time_s
        return self.now_s
