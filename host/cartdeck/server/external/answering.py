"""Owns what another server answers, as the events of a call here: texts, calls of tools, tokens, vectors, transcripts.

It does not know how it comes. What is not as OpenAI has it raises ValueError, KeyError or TypeError;
the caller says so.
"""

import base64
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cartdeck.events import Data, Event
from cartdeck.server.external.asking import Asked
from cartdeck.server.external.counting import Estimate
from cartdeck.server.fields import as_list, as_record
from cartdeck.server.models.directory import Kind
from cartdeck.server.openai_api.transcript_segment import from_openai

_COUNTS: Final = ("prompt_tokens", "completion_tokens")


class Answer:
    """One answer on its way in. `provenance` is what a call's end says."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls: dict[tuple[int, int], dict[str, str]] = {}
        self._finished: set[int] = set()
        self._estimate = Estimate()
        self.provenance: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Whether every text that was asked for has said how it ended."""
        return len(self._finished) >= int(self._asked.fields.get("n") or 1)

    def chunk(self, record: Mapping[str, Any]) -> list[Event]:
        """What a chunk of a stream, or a whole answer of texts, tells."""
        self._note(record)
        events: list[Event] = []
        for choice in record.get("choices") or ():
            index = int(choice.get("index") or 0)
            said = as_record(choice.get("delta") or choice.get("message")) or {"content": choice.get("text")}
            news = list(_text(index, said.get("content") or said.get("refusal")))
            tokens = list(_tokens(index, as_record(choice.get("logprobs"))))
            self._estimate.add_tokens(len(tokens))
            if news:
                self._estimate.add_piece(str(said.get("content") or said.get("refusal")))
            events += [*news, *tokens]
            for number, call in enumerate(said.get("tool_calls") or ()):
                told = call.get("index")
                self._add_call(index, number if told is None else int(told), call)
            if choice.get("finish_reason") is not None:
                events += self._finish(index, str(choice["finish_reason"]))
        return events

    def whole(self, record: Mapping[str, Any]) -> list[Event]:
        """What a whole answer tells."""
        match self._asked.kind:
            case Kind.EMBEDDING:
                self._note(record)
                return list(_vectors(record, count=len(self._asked.fields["input"])))
            case Kind.TRANSCRIPTION:
                return self._transcript(record)
            case _:
                return self.chunk(record)

    def _note(self, record: Mapping[str, Any]) -> None:
        usage = as_record(record.get("usage"))
        if usage:
            details = as_record(usage.get("prompt_tokens_details"))
            counts: dict[str, Any] = {name: int(usage.get(name) or 0) for name in _COUNTS}
            counts["cached_tokens"] = int(details.get("cached_tokens") or 0)
            self.provenance["usage"] = counts | ({"is_estimate": True} if usage.get("is_estimate") else {})
        for name, key in (("system_fingerprint", "fingerprint"), ("seed", "seed")):
            if record.get(name) is not None:
                self.provenance[key] = record[name]

    def _add_call(self, index: int, number: int, piece: Mapping[str, Any]) -> None:
        """A piece of a call: its name and id come once, its arguments in parts."""
        call = self._calls.setdefault((index, number), {"id": f"call_{number}", "name": "", "arguments": ""})
        function = as_record(piece.get("function"))
        call["id"] = str(piece.get("id") or call["id"])
        call["name"] = call["name"] or str(function.get("name") or "")
        call["arguments"] += str(function.get("arguments") or "")
        self._estimate.add_piece(f"{function.get('name') or ''}{function.get('arguments') or ''}")

    def _finish(self, index: int, reason: str) -> list[Event]:
        """The calls of a text, which are whole now, and how it ended."""
        self._finished.add(index)
        if index == 0:
            self.provenance["finish_reason"] = reason
        end = Data("events", {"type": "finish", "index": index, "finish_reason": reason})
        return [*self._take_calls([key for key in self._calls if key[0] == index]), end]

    def end(self) -> list[Event]:
        """What is left where a text did not say how it ended; without counts of its own they are estimated."""
        if "usage" not in self.provenance and self._asked.kind is not Kind.TRANSCRIPTION:
            self.provenance["usage"] = self._estimate.usage(self._asked.fields)
        return list(self._take_calls(list(self._calls)))

    def _take_calls(self, keys: Sequence[tuple[int, int]]) -> Iterator[Event]:
        for index, number in sorted(keys):
            call = self._calls.pop((index, number))
            yield Data("events", {"type": "tool_call", "choice": index, "index": number, **call})

    def _transcript(self, record: Mapping[str, Any]) -> list[Event]:
        text, segments = str(record["text"]), as_list(record.get("segments") or [])
        usage = as_record(record.get("usage"))
        length_s = record.get("duration", usage.get("seconds"))
        self.provenance["settings"] = {
            "language": record.get("language"),
            "audio_s": None if length_s is None else float(length_s),
        }
        told = (Data("segments", from_openai(as_record(one))) for one in segments)
        return [Data("", text.encode("utf-8", "replace")), *told]


def _text(index: int, text: Any) -> Iterator[Event]:
    if text is None or text == "":
        return
    if not isinstance(text, str):
        raise TypeError(f"a text is a {type(text).__name__}")
    if index == 0:
        yield Data("", text.encode("utf-8", "replace"))
    else:
        yield Data("events", {"type": "text", "index": index, "text": text})


def _tokens(index: int, logprobs: Mapping[str, Any]) -> Iterator[Event]:
    """Tokens with their log-probabilities: as chats have them, or in the older form of completions."""
    for one in logprobs.get("content") or ():
        top = [{"text": each["token"], "logprob": each["logprob"]} for each in one.get("top_logprobs") or ()]
        token = {"text": one["token"], "logprob": one["logprob"], "bytes": one.get("bytes"), "top": top}
        yield Data("events", {"type": "token", "index": index, **token})
    tops: list[Any] = logprobs.get("top_logprobs") or []
    for place, text in enumerate(logprobs.get("tokens") or ()):
        beside: Mapping[str, Any] = as_record(tops[place]) if place < len(tops) else {}
        token = {"text": text, "logprob": logprobs["token_logprobs"][place]}
        shown = [{"text": name, "logprob": value} for name, value in beside.items()]
        yield Data("events", {"type": "token", "index": index, **token, "top": shown})


def _vectors(record: Mapping[str, Any], *, count: int) -> Iterator[Event]:
    found = sorted(record["data"], key=lambda one: int(one["index"]))
    if len(found) != count:
        raise ValueError(f"{len(found)} vectors for {count} texts")
    for one in found:
        vector: Any = one["embedding"]
        if isinstance(vector, str):
            yield Data("", base64.b64decode(vector, validate=True))
        elif vector and all(isinstance(number, int | float) and math.isfinite(number) for number in vector):
            yield Data("", struct.pack(f"<{len(vector)}f", *vector))
        else:
            raise ValueError("a vector holds something else than numbers")
