"""Owns the shape of completions: texts, and the older form of log-probabilities.

It does not know how the calls are made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cartdeck.server.openai_api.text_answer import ChunkWriter, TextParts, Texts, finish_reason


def completion_choices(texts: Texts, *, first_index: int, lead: str, with_logprobs: bool) -> list[dict[str, Any]]:
    """The choices of one prompt, numbered from `first_index`; `lead` stands before each text."""
    return [
        {
            "text": lead + "".join(part.text),
            "index": first_index + index,
            "logprobs": _logprobs(part.tokens, 0) if with_logprobs else None,
            "finish_reason": finish_reason(part, has_calls=False),
        }
        for index, part in enumerate(texts.parts)
    ]


class CompletionChunks:
    """Turns what comes of one prompt's texts into chunks."""

    def __init__(self, writer: ChunkWriter, texts: Texts, *, first_index: int, lead: str) -> None:
        self._writer = writer
        self._texts = texts
        self._first_index = first_index
        self._leads = [lead] * len(texts.parts)
        self._offsets = [0] * len(texts.parts)

    def news(self) -> bytes:
        """Chunks for what came since the last time."""
        return b"".join(
            self._chunk(index, part.take(), None)
            for index, part in enumerate(self._texts.parts)
            if part.text or part.tokens
        )

    def end(self, provenance: Mapping[str, Any]) -> bytes:
        """The last chunk of each text, with its finish reason."""
        self._texts.finish(provenance)
        origin = self._writer.origin(provenance)
        return b"".join(
            self._chunk(index, part.take(), finish_reason(part, has_calls=False), origin)
            for index, part in enumerate(self._texts.parts)
        )

    def _chunk(self, index: int, part: TextParts, reason: str | None, origin: Mapping[str, Any] | None = None) -> bytes:
        lead, self._leads[index] = self._leads[index], ""
        logprobs = _logprobs(part.tokens, self._offsets[index]) if part.tokens else None
        self._offsets[index] += sum(len(str(one["text"])) for one in part.tokens)
        choice = {
            "text": lead + "".join(part.text),
            "index": self._first_index + index,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self._writer.chunk(choice, origin)


def _logprobs(tokens: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
    offsets: list[int] = []
    for one in tokens:
        offsets.append(offset)
        offset += len(str(one["text"]))
    return {
        "tokens": [one["text"] for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [{top["text"]: top["logprob"] for top in one.get("top") or ()} or None for one in tokens],
        "text_offset": offsets,
    }
