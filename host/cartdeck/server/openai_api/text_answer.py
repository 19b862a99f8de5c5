"""Owns the answers to requests for text in OpenAI's shape: whole ones and chunks of a stream.

It does not know requests' fields, nor how events come; it turns what a call gave into JSON.
"""

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cartdeck.events import Data, Event, Result
from cartdeck.server.fields import as_record

FINISH_REASONS: Final = {"stop": "stop", "length": "length", "cancelled": "stop"}


@dataclass(slots=True)
class TextParts:
    """What a call gave of one of its texts, in the order in which it came."""

    text: list[str] = field(default_factory=list[str])
    tokens: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    refusal: str | None = None
    """What is said in its place, where it was withheld."""

    def withhold(self, reason: str, refusal: str) -> None:
        """Nothing of it goes out; it ends for that reason."""
        self.text, self.tokens, self.calls = [], [], []
        self.finish_reason, self.refusal = reason, refusal

    def take(self) -> "TextParts":
        """What came since the last time; the finish reason stays here."""
        parts = TextParts(self.text, self.tokens, self.calls, self.finish_reason, self.refusal)
        self.text, self.tokens, self.calls, self.refusal = [], [], [], None
        return parts


class Texts:
    """The texts of one call: the main output is the first, the records on `events` say the rest."""

    def __init__(self, count: int) -> None:
        self.parts = [TextParts() for _ in range(count)]

    def add_events(self, events: Iterable[Event]) -> bool:
        """Take the events in; whether there is news."""
        has_news = False
        for one in events:
            if isinstance(one, Data):
                has_news = True
                if not one.output:
                    self.parts[0].text.append(one.text)
                else:
                    self._add_record(as_record(one.value))
        return has_news

    def add_result(self, result: Result) -> None:
        """Take a whole result in."""
        self.parts[0].text.append(result.text)
        for record in result.items_of("events"):
            self._add_record(record)

    def finish(self, provenance: Mapping[str, Any]) -> None:
        """The call has ended: texts that said no reason of their own end for the call's."""
        for part in self.parts:
            part.finish_reason = part.finish_reason or str(provenance.get("finish_reason") or "stop")

    def _add_record(self, record: Mapping[str, Any]) -> None:
        kind, index = record.get("type"), int(record.get("index") or 0)
        if kind == "tool_call":
            choice = int(record.get("choice") or 0)  # where one text calls, the index is the call's own
            if 0 <= choice < len(self.parts):
                self.parts[choice].calls.append(dict(record))
        elif 0 <= index < len(self.parts):
            part = self.parts[index]
            if kind == "text":
                part.text.append(str(record["text"]))
            elif kind == "token":
                part.tokens.append(dict(record))
            elif kind == "finish":
                part.finish_reason = str(record["finish_reason"])


class Envelope:
    """What all chunks and the whole of one answer have in common."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self.kind = kind
        self.model = model
        self.created = int(time.time())

    def whole(self, choices: Sequence[Any], provenances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage_of(provenances),
            **_origin(provenances),
        }


class ChunkWriter:
    """Writes chunks: each is one server-sent event, with a `choices` that holds one text's news.

    With `with_usage` every chunk has a `usage`, null in all but the last one, whose `choices` is empty.
    """

    def __init__(self, envelope: Envelope, *, with_usage: bool) -> None:
        self._envelope = envelope
        head = {
            "id": envelope.id,
            "object": envelope.kind,
            "created": envelope.created,
            "model": envelope.model,
        }
        self._head = json.dumps(head, ensure_ascii=False)[:-1]
        self._with_usage = with_usage
        self._tail = ',"usage":null}\n\n' if with_usage else "}\n\n"

    def chunk(self, choice: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> bytes:
        rest = "" if not more else "," + json.dumps(more, ensure_ascii=False)[1:-1]
        return f'data: {self._head},"choices":[{dumped(choice)}]{rest}{self._tail}'.encode("utf-8", "replace")

    def last(self, provenances: Sequence[Mapping[str, Any]]) -> bytes:
        """What stands before the end: the counts, where they were asked for."""
        if not self._with_usage:
            return b""
        usage = dumped(usage_of(provenances))
        return f'data: {self._head},"choices":[],"usage":{usage}}}\n\n'.encode()

    def origin(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """What the chunk with a finish reason says of the text's origin."""
        return _origin([provenance])


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def usage_of(provenances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of several calls together; where one was not counted by who made it, `is_estimate` says so."""
    counts = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
    is_estimate = False
    for provenance in provenances:
        usage = as_record(provenance.get("usage"))
        is_estimate = is_estimate or bool(usage.get("is_estimate"))
        for name in counts:
            counts[name] += int(usage.get(name) or 0)
    prompt, made = counts["prompt_tokens"], counts["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": counts["cached_tokens"]},
        **({"is_estimate": True} if is_estimate else {}),
    }


def _origin(provenances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`system_fingerprint`, which changes with whatever computes, the seed that was used, and which model stood in;
    what guards said."""
    first = as_record(provenances[0] if provenances else None)
    cartridge, engine = as_record(first.get("cartridge")), as_record(first.get("engine"))
    words = [cartridge.get("name"), cartridge.get("version"), engine.get("library"), engine.get("version")]
    own = "-".join(str(word) for word in words if word) or None
    said = {"system_fingerprint": first.get("fingerprint") or own}
    said |= {key: first[key] for key in ("seed", "stood_in") if first.get(key) is not None}
    guards = [one for provenance in provenances for one in provenance.get("guards", ())]
    return said | ({"guards": guards} if guards else {})


def finish_reason(part: TextParts, *, has_calls: bool) -> str:
    reason = part.finish_reason or "stop"
    if has_calls and reason == "stop":
        return "tool_calls"
    return FINISH_REASONS.get(reason, reason)
