# pyright: basic
# Of torch's names many have no types.
"""Owns which token may follow in a text with time marks: the rules of Radford et al. 2022 and its code.

It does not know the model; it works on one row of logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class MarkRules:
    """Token numbers of one model. Marks are `first_mark` and above; `end` closes the text; `never` are left out always,
    `never_first` at the beginning."""

    end: int
    first_mark: int
    never: torch.Tensor
    never_first: torch.Tensor
    latest_first_mark: int

    def lowest(self, said: Sequence[int]) -> int:
        """The lowest token that may follow `said`: those below it need no numbers."""
        if not said:
            return self.first_mark
        return self.end if self._is_half_pair(said) else 0

    def _is_half_pair(self, said: Sequence[int]) -> bool:
        """Whether the last token is a mark that closes a part."""
        return said[-1] >= self.first_mark and len(said) > 1 and said[-2] < self.first_mark

    def apply(self, logits: torch.Tensor, said: Sequence[int]) -> None:
        """Rules out, in place, what cannot follow the tokens `said` since the prompt. `logits` is [tokens], float32.

        Marks come in pairs, never fall, and the first token is one; a mark is taken where all of them together are
        likelier than any word.
        """
        first = self.first_mark
        logits[self.never] = _NEVER
        if not said:
            logits[self.never_first] = _NEVER
            logits[:first] = _NEVER
            logits[self.latest_first_mark + 1 :] = _NEVER
            return
        is_half_pair = self._is_half_pair(said)
        if is_half_pair:
            logits[: self.end] = _NEVER
        elif said[-1] >= first:
            logits[first:] = _NEVER
        latest = next((token for token in reversed(said) if token >= first), None)
        if latest is not None:
            logits[first : latest + (0 if is_half_pair else 1)] = _NEVER
        if torch.logsumexp(logits[first:], dim=0) > logits[:first].max():  # as of likelihoods: both lack one term
            logits[:first] = _NEVER
