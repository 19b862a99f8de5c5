"""Owns a set of byte positions as spans [start, end): which bytes of a file are there, and which are missing.

It does not know files, nor threads: its user holds a lock.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

Span = tuple[int, int]


class Spans:
    """Positions, kept as the fewest spans in order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def add(self, start: int, end: int) -> None:
        """Take [start, end) in; what touches it becomes one span with it."""
        if start >= end:
            return
        spans = self._spans
        at = bisect_left(spans, (start, start))
        if at and spans[at - 1][1] >= start:
            at -= 1
        after = at
        while after < len(spans) and spans[after][0] <= end:
            start, end = min(start, spans[after][0]), max(end, spans[after][1])
            after += 1
        spans[at:after] = [(start, end)]

    @property
    def size(self) -> int:
        """How many positions there are."""
        return sum(end - start for start, end in self._spans)

    @property
    def prefix(self) -> int:
        """How many there are from 0 on without a gap."""
        return self._spans[0][1] if self._spans and self._spans[0][0] == 0 else 0

    def gaps(self, size: int, *, longest: int) -> list[Span]:
        """What is missing of [0, size), in order, in spans of `longest` at most."""
        found: list[Span] = []
        at = 0
        for start, end in [*self._spans, (size, size)]:
            while at < min(start, size):
                found.append((at, min(at + longest, start, size)))
                at = found[-1][1]
            at = max(at, end)
        return found
