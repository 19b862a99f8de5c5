"""Owns what is sent to another server: the fields that the client wrote, the catalog's defaults and limits.

It does not know how it is sent, nor what comes back.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel
from starlette.datastructures import UploadFile

from cartdeck.catalog.consistency import SENT_ELSEWHERE
from cartdeck.server.body import FilePieces
from cartdeck.server.models.directory import Kind, ServedModel
from cartdeck.server.openai_api.text_request import MOST_TOKENS
from cartdeck_protocol.caps import load_shared_definition

PATHS: Final[Mapping[Kind, str]] = {
    Kind.CHAT: "/chat/completions",
    Kind.COMPLETION: "/completions",
    Kind.EMBEDDING: "/embeddings",
    Kind.TRANSCRIPTION: "/audio/transcriptions",
}
_STREAMED: Final = (Kind.CHAT, Kind.COMPLETION)
_MADE_HERE: Final = frozenset({"model", "stream", "stream_options", "prompt", "echo", "best_of", "input"})
"""Fields that are written anew, or that this server does itself."""
_TIMED: Final = ("verbose_json", "srt", "vtt")
_BOUNDS: Final = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: a path below the server's address, its fields, and the file of a form."""

    kind: Kind
    path: str
    fields: dict[str, Any]
    file: UploadFile | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.fields.get("stream"))

    def without_counts(self) -> "Asked":
        """The same for a server that does not know stream_options."""
        return replace(self, fields={name: value for name, value in self.fields.items() if name != "stream_options"})


def asked_of(
    kind: Kind, model: ServedModel, form: BaseModel | None, arguments: Mapping[str, Any], *, is_stream: bool
) -> Asked:
    """The request for a call of a cap with these arguments, as which a client's `form` was understood."""
    assert model.place is not None
    fields = {} if form is None else _given(form)
    if kind is Kind.TRANSCRIPTION:
        return _asked_of_recording(model, fields, arguments)
    for name, value in model.arguments.items():
        field = name.replace("-", "_")
        if name in SENT_ELSEWHERE and field not in fields and not (name == "max-tokens" and _BOUNDS[0] in fields):
            fields[field] = value
    if kind is Kind.EMBEDDING:
        fields |= {"input": list(arguments["texts"]), "encoding_format": "float"}
    else:
        _bound(fields, model)
    if kind is Kind.COMPLETION:
        fields["prompt"] = arguments["prompt"]
        fields.setdefault("max_tokens", load_shared_definition("generate-text").arguments["max-tokens"].default)
    if is_stream and kind in _STREAMED:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return Asked(kind, PATHS[kind], {"model": model.place.model, **fields})


def json_of(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _given(form: BaseModel) -> dict[str, Any]:
    fields = form.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {name: value for name, value in fields.items() if value is not None and name not in _MADE_HERE}


def _bound(fields: dict[str, Any], model: ServedModel) -> None:
    most = min(model.most_tokens or MOST_TOKENS, MOST_TOKENS)
    for name in _BOUNDS:
        if name in fields:
            fields[name] = min(fields[name], most)


def _asked_of_recording(model: ServedModel, fields: dict[str, Any], arguments: Mapping[str, Any]) -> Asked:
    """Times are asked for where the client's form has them; each other server knows at least json."""
    assert model.place is not None
    task = arguments.get("task")
    form = {"model": model.place.model, "response_format": "json"}
    if fields.get("response_format") in _TIMED:
        form["response_format"] = "verbose_json"
    given = {**model.arguments, **{name: value for name, value in arguments.items() if value is not None}}
    form |= {name: str(given[name]) for name in ("language", "beams") if given.get(name) is not None}
    recording = arguments.get("audio")
    assert isinstance(recording, FilePieces)
    path = "/audio/translations" if task == "translate" else PATHS[Kind.TRANSCRIPTION]
    return Asked(Kind.TRANSCRIPTION, path, form, recording.file)
