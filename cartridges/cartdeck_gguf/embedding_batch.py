"""Owns which texts are computed together: those of like length, so that a batch is full and its texts end together.

It does not know texts or the engine; it sees lengths.
"""

from collections.abc import Sequence


def pack_by_length(lengths: Sequence[int], *, most_tokens: int, most_texts: int) -> list[list[int]]:
    """The indices of `lengths` in batches of at most `most_texts` texts and `most_tokens` tokens in all; a text longer
    than that is a batch by itself."""
    batches: list[list[int]] = []
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda one: lengths[one]):
        if batch and (len(batch) == most_texts or tokens + lengths[index] > most_tokens):
            batches.append(batch)
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        batches.append(batch)
    return batches
