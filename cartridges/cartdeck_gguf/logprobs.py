"""Owns how likely the model itself found a token: before biases, penalties, temperature and masks.

It does not know how a token is drawn. Imported like `llama`: on the owner's thread, at a load.
"""

from typing import Any

from cartdeck_gguf.llama import NUMPY


class Scores:
    """The log probabilities at one place of a text, from the engine's numbers, which may be changed afterwards."""

    def __init__(self, logits: Any, top: int) -> None:
        """`top`: how many of the likeliest tokens are kept."""
        self._logits = logits.copy()
        largest = self._logits.max()
        self._base = float(largest + NUMPY.log(NUMPY.exp(self._logits - largest).sum()))
        self.top: list[tuple[int, float]] = self._likeliest(min(top, len(logits))) if top else []
        """The likeliest tokens, the first one first, each with its log probability."""

    def of(self, token: int) -> float:
        """The log probability of a token."""
        return float(self._logits[token]) - self._base

    def _likeliest(self, count: int) -> list[tuple[int, float]]:
        found = NUMPY.argpartition(self._logits, -count)[-count:]
        return [(token, self.of(token)) for token in sorted(found.tolist(), key=lambda one: (-self._logits[one], one))]
