"""Owns one text's place in the context: its sequence, the tokens that were computed there, and what comes next.

It does not know the others.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cartdeck_gguf.choice import Choice
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.prefix_cache import Trace
from cartdeck_gguf.prompt import Insert, Prompt

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context


@dataclass(frozen=True, slots=True)
class Part:
    """What is computed of a prompt at a time, from the place `start` on: tokens, or an insert."""

    start: int
    tokens: list[int]
    insert: Insert | None = None


class Track:
    """A text that is being computed. Its `trace` is what the sequence has seen."""

    def __init__(self, choice: Choice, prompt: Prompt, trace: Trace) -> None:
        self.choice = choice
        self.alone = frozenset((choice.generation,))
        """Who is in a call of the engine that computes nothing but this text."""
        self.prompt = prompt
        self.trace = trace
        self.pending: list[int] = []
        """The token that was drawn and is not yet computed, if there is one."""
        self.read_at = 0.0
        """When a slice of the prompt was last computed, by the monotonic clock."""

    @property
    def generation(self) -> Generation:
        return self.choice.generation

    @property
    def sequence(self) -> int:
        """The place in the context; -1 once it is given up."""
        return self.trace.sequence

    @property
    def is_reading(self) -> bool:
        """Whether some of the prompt is still to be computed."""
        return len(self.trace.tokens) < len(self.prompt.tokens)

    @property
    def can_draw(self) -> bool:
        """Whether its next token can be computed now."""
        return bool(self.pending) and not self.generation.delivery.is_full

    @property
    def is_left_out(self) -> bool:
        """Whether it could go on, were its reader not behind."""
        return bool(self.pending) and self.generation.delivery.is_full

    def next_part(self, slice_tokens: int) -> Part:
        """The next of the prompt: up to where a slice ends, an insert begins, or the prompt is over."""
        start = len(self.trace.tokens)
        insert = self.prompt.inserts.get(start)
        if insert is not None:
            return Part(start, [], insert)
        end = min(start - start % slice_tokens + slice_tokens, len(self.prompt.tokens))
        end = min([end, *(place for place in self.prompt.inserts if place > start)])
        return Part(start, self.prompt.tokens[start:end])

    def computed(self, tokens: list[int], slice_tokens: int) -> None:
        """Takes in that the next tokens are computed."""
        trace = self.trace
        if not self.is_reading:
            trace.tokens.extend(tokens)
            self.pending = []
            return
        if len(tokens) == slice_tokens and len(trace.tokens) == trace.exact:
            trace.exact += slice_tokens
        trace.tokens.extend(tokens)
        self.pending = []
        self.generation.prompt_done = max(self.generation.prompt_done, min(len(trace.tokens), len(self.prompt.tokens)))

    def compute_insert(self, context: "Context", start: int) -> None:
        """Computes the insert at that place."""
        insert = self.prompt.inserts[start]
        insert.compute(context, sequence=self.sequence, position=start)
        self.computed(self.prompt.tokens[start : start + insert.positions], slice_tokens=0)

    def draw(self, context: "Context", row: int) -> None:
        """Draws the next token from that row of what was just computed. Raises what `Choice.draw` raises."""
        token = self.choice.draw(context, row)
        self.pending = [] if token is None else [token]
