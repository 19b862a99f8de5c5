"""Owns which texts are computed together: by length, as many as a budget of tokens takes.

It does not know tensors. Texts of like length share a batch, so that little is waited for and nothing is padded.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

TOKEN_BUDGET: Final = 1024
"""Measured with MiniLM on one thread: 512 to 2,048 are alike, 256 and 4,096 a tenth slower."""


def plan_batches(lengths: Sequence[int], *, budget: int = TOKEN_BUDGET) -> list[list[int]]:
    """The indices of texts of these `lengths`, in batches of at most `budget` tokens, a longer text alone; the longest
    first. Every index is in one batch."""
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda one: (-lengths[one], one)):
        if not batches or lengths[index] > room:
            batches.append([])
            room = max(budget, lengths[index])
        batches[-1].append(index)
        room -= lengths[index]
    return batches


def equal_runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours of one length, as (how many, length)."""
    return [(len(list(run)), length) for length, run in groupby(lengths)]
