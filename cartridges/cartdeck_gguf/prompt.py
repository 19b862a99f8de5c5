"""Owns what a text goes on from: the tokens of a prompt, and what is put between them that no token stands for.

It does not know how either is made or computed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context


class Insert(Protocol):
    """Something that a model sees among tokens, an image for instance."""

    @property
    def positions(self) -> int:
        """How many places of the sequence it takes."""
        ...

    @property
    def key(self) -> bytes:
        """What tells it from any other: two of the same key leave the same trace in a context."""
        ...

    def compute(self, context: "Context", *, sequence: int, position: int) -> None:
        """Has the model see it, from that place of the sequence on; on the owner's thread."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tokens` has one number for each place: a token, or below zero one of those that an insert takes. `inserts` are
    those, by the place where each begins."""

    tokens: list[int]
    inserts: dict[int, Insert] = field(default_factory=dict[int, Insert])

    @classmethod
    def of(cls, parts: Sequence[Sequence[int] | Insert]) -> "Prompt":
        """A prompt of lists of tokens and inserts, in their order. The last place must be a token's."""
        tokens: list[int] = []
        inserts: dict[int, Insert] = {}
        for part in parts:
            if isinstance(part, Sequence):
                tokens.extend(part)
            else:
                inserts[len(tokens)] = part
                tokens.extend(_stand_ins(part))
        return cls(tokens, inserts)

    def whole_length(self, length: int) -> int:
        """The largest number of places up to `length` that ends inside no insert."""
        for start, insert in self.inserts.items():
            if start < length < start + insert.positions:
                return start
        return length


def _stand_ins(insert: Insert) -> list[int]:
    """Numbers below zero that no other insert has: prompts are compared by their numbers alone."""
    seed: Any = int.from_bytes(hashlib.sha256(insert.key).digest()[:7], "little")
    return [-1 - ((seed << 24) + index) for index in range(insert.positions)]
