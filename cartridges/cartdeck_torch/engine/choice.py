# pyright: basic
# Of torch's names many have no types.
"""Owns one text on its way: its tokens drawn one by one, what they say, what is told of them, what ends it.

It does not know how a token's numbers are computed.
"""

import time
from typing import Any

import torch

from cartdeck_modelkit.told_text import TokenRecord, ToldText
from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.engine.sampler import Sampler
from cartdeck_torch.engine.vocabulary import PieceTable
from cartdeck_torch.generation import Generation, finish_event, text_event, token_events
from cartdeck_torch.job import Job


class Choice:
    """The text `index` of a generation."""

    def __init__(self, generation: Generation, index: int, *, pieces: PieceTable, sampler: Sampler, job: Job) -> None:
        self.is_over = False
        self._generation = generation
        self._index = index
        self._pieces = pieces
        self._sampler = sampler
        self._job = job
        self._told = ToldText(generation.settings.stop)
        self._tokens = 0

    def draw(self, logits: torch.Tensor, *, most_tokens: int, started_s: float) -> int:
        """Draws a token from [vocabulary] `logits`, which are changed, and says what it makes certain.

        Raises `NON_FINITE_OUTPUT`.
        """
        generation, settings = self._generation, self._generation.settings
        self._job.stop.check()
        if not torch.isfinite(logits.max()):  # also where a single number is none
            message = f"the model gave no numbers after {self._tokens} tokens; dtype float32 may help"
            raise failure(Code.NON_FINITE_OUTPUT, message, phase="inference")
        likely = torch.log_softmax(logits, dim=0) if settings.logprobs else None
        token = self._sampler.draw(logits)
        if generation.first_token_s is None:
            generation.first_token_s = time.monotonic() - started_s
        if token in self._pieces.ends:
            self._finish("stop")
            return token
        self._tokens += 1
        generation.completion_tokens += 1
        self._sampler.accept(token)
        data = self._pieces.piece(token)
        self._say(*self._told.push(data, None if likely is None else self._record(token, data, likely)))
        if self._told.stopped_by is not None or self._sampler.is_complete:
            self._finish("stop")
        elif self._tokens >= most_tokens:
            self._finish("length")
        return token

    def _finish(self, reason: Any) -> None:
        self._say(*self._told.finish())
        self.is_over = True
        if self._index == 0:
            self._generation.finish_reason = reason
        if self._generation.settings.texts > 1:
            self._job.put(finish_event(self._generation, self._index, reason))

    def _say(self, text: str, records: list[TokenRecord]) -> None:
        events = token_events(self._index, records)
        if text and self._index == 0:
            self._job.say(text)
        elif text:
            events.insert(0, text_event(self._index, text))
        for event in events:
            self._job.put(event)
        if not text and not events:
            self._job.touch()

    def _record(self, token: int, data: bytes, likely: torch.Tensor) -> TokenRecord:
        count = min(self._generation.settings.top_logprobs, likely.shape[0])
        values, tokens = likely.topk(count)
        top = tuple(
            (one, self._pieces.piece(one).decode("utf-8", errors="replace"), value)
            for one, value in zip(tokens.tolist(), values.tolist(), strict=True)
        )
        return TokenRecord(id=token, data=data, logprob=float(likely[token]), top=top)
