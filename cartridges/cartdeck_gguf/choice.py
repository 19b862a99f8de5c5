"""Owns one text on its way: its tokens drawn one by one, the text they make, what ends it, and what is told of it.

It does not know sequences, nor when its turn comes. Lives on the owner's thread.
"""

import time
from typing import TYPE_CHECKING, Any

from cartdeck_gguf.generation import Generation, Piece
from cartdeck_modelkit.provenance import FinishReason
from cartdeck_modelkit.told_text import TokenRecord, ToldText
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.context import Context
    from cartdeck_gguf.llama import Model
    from cartdeck_gguf.logprobs import Scores
    from cartdeck_gguf.sampler import Sampler


class Choice:
    """The text `index` of a generation."""

    def __init__(self, generation: Generation, index: int, *, model: "Model", sampler: "Sampler") -> None:
        self.generation = generation
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._sampler = sampler
        self._told = ToldText(generation.settings.stop)
        self._tokens = 0

    def draw(self, context: "Context", row: int) -> int | None:
        """Draws the next token from that row of what was computed; None when the text has its end.

        Raises `NON_FINITE_OUTPUT`, and what `Sampler.sample` raises.
        """
        generation, settings = self.generation, self.generation.settings
        scores = self._sampler.scores(context, row, settings.top_logprobs) if settings.logprobs else None
        token = self._sampler.sample(context, row)
        if token is None:
            raise failure(
                Code.NON_FINITE_OUTPUT,
                f"{self._model.path.name} gave numbers that are not finite after {self._tokens} tokens; "
                "its file may be damaged",
                phase="inference",
            )
        if generation.first_token_s is None and generation.started_s is not None:
            generation.first_token_s = time.monotonic() - generation.started_s
        if self._model.is_end(token):
            return self.finish("stop")
        self._tokens += 1
        generation.completion_tokens += 1
        self._take(token, scores)
        if self._told.stopped_by is not None or self._sampler.is_complete:
            return self.finish("stop")
        if self._tokens >= generation.max_tokens:
            return self.finish("length")
        return token

    def _take(self, token: int, scores: "Scores | None") -> None:
        data = self._model.piece(token)
        text, records = self._told.push(data, None if scores is None else self._record(token, data, scores))
        if text or records:
            self.generation.delivery.put(Piece(index=self.index, text=text, records=records), len(text) + 1)
        else:
            self.generation.delivery.touch()

    def finish(self, reason: FinishReason) -> None:
        """Ends the text: what was held back is given out."""
        text, records = self._told.finish()
        self.finish_reason = reason
        piece = Piece(index=self.index, text=text, records=records, finish_reason=reason)
        self.generation.delivery.put(piece, len(text) + 1)

    def _record(self, token: int, data: bytes, scores: "Scores") -> TokenRecord:
        def text_of(one: int) -> str:
            return self._model.piece(one).decode("utf-8", errors="replace")

        top = tuple((one, text_of(one), logprob) for one, logprob in scores.top)
        return TokenRecord(id=token, data=data, logprob=scores.of(token), top=top)

    def close(self) -> None:
        self._sampler.close()

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"index": self.index, "tokens": self._tokens, "finish_reason": self.finish_reason}
        return f"Choice({shown})"
