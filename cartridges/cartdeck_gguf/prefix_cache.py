"""Owns what is kept of texts that are over: which tokens were seen, where their traces are, and which of them a new
prompt can begin with.

It does not know requests. A text that is over stays in the context's cells until another comes; then it is put into
memory, up to a budget, the one that was used least lately is dropped first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context

PARKED_BYTES: Final = 256 * 1024 * 1024
"""How much memory the parked traces take at most, all together."""


@dataclass(slots=True, eq=False)
class Trace:
    """Tokens that were computed one after another, the first `exact` of them in whole slices that nothing else was
    computed with: they are, bit for bit, what computing them again would give."""

    tokens: list[int]
    exact: int = 0
    sequence: int = -1
    """Where it is in the context; -1 when it is not."""
    state: Any = None


class Wanted(Enum):
    """How much of what was seen a request takes."""

    ALL = "all"
    """To the last common token: what follows is computed in other calls than from the start, its numbers differ."""
    SAME_TEXT = "same text"
    """Up to where a slice ends, of what is exact so far: what follows is computed as if all was. All of what is not, as
    an answer that a dialogue goes on from."""
    EXACT = "exact"
    """What is exact, and no more."""


@dataclass(frozen=True, slots=True)
class Match:
    """The first `length` tokens of a prompt, to be had from a trace."""

    trace: Trace
    length: int


class PrefixCache:
    """The traces of texts that are over. Each one in the context has a sequence there until it is taken from here."""

    def __init__(self, context: "Context", *, slice_tokens: int, parked_bytes: int = PARKED_BYTES) -> None:
        self._context = context
        self._slice = slice_tokens
        self._budget = parked_bytes
        self._resident: list[Trace] = []
        self._parked: list[Trace] = []

    @property
    def resident(self) -> Sequence[Trace]:
        """The traces that are in the context."""
        return self._resident

    @property
    def resident_count(self) -> int:
        """How many sequences of the context it has."""
        return len(self._resident)

    @property
    def parked_bytes(self) -> int:
        return sum(len(trace.state) for trace in self._parked)

    def find(self, tokens: Sequence[int], live: Iterable[Trace], *, wanted: Wanted) -> Match | None:
        """The longest beginning of a prompt that a trace has, in the context, in memory or being computed (`live`).

        The last token is never among it: its numbers are wanted.
        """
        best: Match | None = None
        for trace in (*live, *self._resident, *reversed(self._parked)):
            length = self._usable(trace, tokens, wanted)
            if length and (best is None or length > best.length):
                best = Match(trace, length)
        return best

    def _usable(self, trace: Trace, tokens: Sequence[int], wanted: Wanted) -> int:
        length = min(common_length(trace.tokens, tokens), len(tokens) - 1)
        whole = length - length % self._slice
        if wanted is Wanted.ALL or (wanted is Wanted.SAME_TEXT and whole > trace.exact):
            return length
        return min(trace.exact, whole)

    def take(self, trace: Trace, length: int) -> Trace | None:
        """The first `length` tokens of a trace that nobody uses, in its own place of the context, which it leaves with
        that; its end is parked where it is worth it. None for one that is elsewhere."""
        if trace not in self._resident:
            return None
        self._resident.remove(trace)
        if len(trace.tokens) - length >= self._slice:
            self._put(Trace(trace.tokens, trace.exact, state=self._context.save(trace.sequence)))
        self._context.forget(trace.sequence, length)
        if not self._context.is_whole(trace.sequence, length):
            self._resident.append(trace)
            return None
        exact = min(trace.exact, length - length % self._slice)
        return Trace(trace.tokens[:length], exact, trace.sequence)

    def copy(self, trace: Trace, length: int, sequence: int) -> bool:
        """Gives an empty sequence the first `length` tokens of a trace that is being computed or parked. False, and it
        is empty, when that cannot be."""
        context = self._context
        if trace.sequence >= 0:
            context.copy(trace.sequence, sequence, length)
        elif trace in self._parked and context.restore(sequence, trace.state):
            context.forget(sequence, length)
            self._parked.remove(trace)
            self._parked.append(trace)  # used most lately
        if context.is_whole(sequence, length):
            return True
        context.forget(sequence)
        return False

    def keep(self, trace: Trace) -> bool:
        """Takes a text that is over, its sequence with it. False for one that another trace has, but for less than a
        slice: its sequence is to be freed."""
        if any(self._covers(other, trace) for other in (*self._resident, *self._parked)):
            return False
        self._resident.append(trace)
        return True

    def park(self, live: Sequence[Trace] = ()) -> list[int]:
        """Moves every trace out of the context, those worth it into memory: not a short one, nor one that a live text
        goes on from. The sequences that are free now."""
        freed: list[int] = []
        for trace in self._resident:
            if len(trace.tokens) >= self._slice and not any(self._covers(other, trace) for other in live):
                trace.state = self._context.save(trace.sequence)
                self._put(trace)
            freed.append(trace.sequence)
            self._context.forget(trace.sequence)
            trace.sequence = -1
        self._resident.clear()
        return freed

    def drop(self) -> list[int]:
        """Forgets every trace in the context; the sequences that are free now."""
        freed = [trace.sequence for trace in self._resident]
        for sequence in freed:
            self._context.forget(sequence)
        self._resident.clear()
        return freed

    def _covers(self, other: Trace, trace: Trace) -> bool:
        return common_length(other.tokens, trace.tokens) > len(trace.tokens) - self._slice

    def _put(self, trace: Trace) -> None:
        if trace.state is None:
            return  # the engine had no room for it
        longer = trace.tokens
        self._parked = [one for one in self._parked if common_length(one.tokens, longer) < len(one.tokens)]
        self._parked.append(trace)
        while self._parked and self.parked_bytes > self._budget:
            del self._parked[0]


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two lists begin with alike; by halves, each compared as a whole."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
