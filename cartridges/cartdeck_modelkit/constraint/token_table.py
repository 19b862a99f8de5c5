"""Owns what a constraint must know of a model's vocabulary.

It does not know the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The vocabulary of a model: the `pieces` of bytes by token, those that are `special`, those that `end` a text.

    `tokenize(text)` gives the tokens of a text as the model's own tokenizer would; it is called from whichever thread
    uses a constraint.
    """

    pieces: Sequence[bytes]
    special: Sequence[int]
    end: Sequence[int]
    tokenize: Callable[[str], list[int]]
