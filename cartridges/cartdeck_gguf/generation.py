"""Owns one request for text: what it asks for, what is counted of it, and the way of its pieces to the handler.

It does not know llama.cpp, nor how texts are computed side by side. Made on the handler's side; from `submit` on, the
counts are written by the owner's thread and read by the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cartdeck_gguf.prompt import Prompt
from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.delivery import Delivery
from cartdeck_modelkit.provenance import FinishReason, Provenance
from cartdeck_modelkit.sampling import LARGEST_SEED, SamplingSettings
from cartdeck_modelkit.told_text import TokenRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What came of the text `index`: characters that are certain, records of tokens where they were asked for, and
    with the last one why it ended."""

    index: int = 0
    text: str = ""
    records: Sequence[TokenRecord] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the engine's for the request's log."""

    level: str
    text: str


class Generation:
    """One or more texts that go on from one prompt.

    `prompt_done` of `prompt_tokens` are known, `cached_tokens` of them without being computed; `completion_tokens` of
    at most `most_tokens` are drawn, all texts together; `finish_reason` is set when the last text has its end, and is
    that of the first one.
    """

    def __init__(
        self, prompt: str | Prompt, settings: SamplingSettings, *, constraint: Constraint | None = None
    ) -> None:
        """A `prompt` that is text goes to the model as it is, a `Prompt` is tokens already. `constraint` is what each
        text is held to where that is no schema of the settings: a choice between tools for instance."""
        self.prompt = prompt
        self.settings = settings
        self.constraint = constraint
        self.delivery: Delivery[Piece | LogLine] = Delivery()
        self.position = 0
        """How many requests wait before this one; 0 once it is computed."""
        self.prompt_tokens = 0
        self.prompt_done = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.most_tokens = settings.max_tokens
        self.max_tokens = settings.max_tokens
        """Of each text, cut to what fits."""
        self.finish_reason: FinishReason | None = None
        self.first_token_s: float | None = None
        self.started_s: float | None = None
        self.is_batched = False
        """Whether a token of it was computed in one call with tokens of others."""
        self.is_cancelled = False

    @property
    def seeds(self) -> list[int]:
        """The seed of each text."""
        first = self.settings.seed
        return [(first + index) % (LARGEST_SEED + 1) for index in range(self.settings.texts)]

    def describe(self, provenance: Provenance) -> None:
        """Puts what is known so far into the record of the call."""
        provenance.seed = self.settings.seed
        provenance.finish_reason = self.finish_reason
        provenance.batched = self.is_batched
        provenance.usage.prompt_tokens = self.prompt_tokens
        provenance.usage.completion_tokens = self.completion_tokens
        provenance.usage.cached_tokens = self.cached_tokens
        provenance.timing.first_token_s = self.first_token_s

    def log(self, level: str, line: str) -> None:
        """Hands a line of the engine's to the request's log; from the owner's thread."""
        self.delivery.put(LogLine(level, line), len(line))
