"""Owns the shape of chat answers: messages, their deltas, calls of tools, log-probabilities of tokens.

It does not know how the call is made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cartdeck.server.openai_api.text_answer import ChunkWriter, TextParts, Texts, finish_reason


def chat_choices(texts: Texts, *, with_logprobs: bool) -> list[dict[str, Any]]:
    """The choices of a whole answer."""
    return [_choice(index, part, with_logprobs=with_logprobs) for index, part in enumerate(texts.parts)]


def _choice(index: int, part: TextParts, *, with_logprobs: bool) -> dict[str, Any]:
    text = "".join(part.text)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not part.calls else None,
        "refusal": None,
    }
    if part.calls:
        message["tool_calls"] = [_tool_call(call) for call in part.calls]
    if part.refusal is not None:
        message |= {"content": None, "refusal": part.refusal}
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(part.tokens) if with_logprobs else None,
        "finish_reason": finish_reason(part, has_calls=bool(part.calls)),
    }


class ChatChunks:
    """Turns what comes of the texts into chunks."""

    def __init__(self, writer: ChunkWriter, texts: Texts) -> None:
        self._writer = writer
        self._texts = texts
        self._has_begun = [False] * len(texts.parts)
        self._calls = [0] * len(texts.parts)

    def news(self) -> bytes:
        """Chunks for what came since the last time."""
        return b"".join(
            self._delta(index, part.take())
            for index, part in enumerate(self._texts.parts)
            if part.text or part.tokens or part.calls or part.refusal
        )

    def end(self, provenance: Mapping[str, Any]) -> bytes:
        """The last chunk of each text, with its finish reason."""
        self._texts.finish(provenance)
        origin = self._writer.origin(provenance)
        chunks = [self.news()]
        for index, part in enumerate(self._texts.parts):
            if not self._has_begun[index]:
                chunks.append(self._delta(index, TextParts()))
            reason = finish_reason(part, has_calls=self._calls[index] > 0)
            choice: dict[str, Any] = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
            chunks.append(self._writer.chunk(choice, origin))
        return b"".join(chunks)

    def _delta(self, index: int, part: TextParts) -> bytes:
        delta: dict[str, Any] = {}
        if not self._has_begun[index]:
            self._has_begun[index] = True
            delta = {"role": "assistant", "content": "", "refusal": None}
        if part.text:
            delta["content"] = "".join(part.text)
        if part.calls:
            first = self._calls[index]
            self._calls[index] += len(part.calls)
            delta["tool_calls"] = [{"index": first + n, **_tool_call(call)} for n, call in enumerate(part.calls)]
        if part.refusal is not None:
            delta["refusal"] = part.refusal
        logprobs = _logprobs(part.tokens) if part.tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._writer.chunk(choice)


def _tool_call(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": record["id"],
        "type": "function",
        "function": {"name": record["name"], "arguments": record["arguments"]},
    }


def _logprobs(tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"content": [_token(one) for one in tokens], "refusal": None}


def _token(record: Mapping[str, Any]) -> dict[str, Any]:
    top = [
        {"token": one["text"], "logprob": _finite(one["logprob"]), "bytes": list(str(one["text"]).encode())}
        for one in record.get("top") or ()
    ]
    shown = {"token": record["text"], "logprob": _finite(record["logprob"]), "bytes": record.get("bytes")}
    return {**shown, "top_logprobs": top}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes this for a token that was ruled out."""
    return max(logprob, -9999.0)
