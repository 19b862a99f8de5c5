"""Owns `/v1/audio/transcriptions` and `/v1/audio/translations`: a recording in, text or times out.

It does not know sounds, nor how they are understood.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from cartdeck.events import Data, Event
from cartdeck.server.body import FilePieces, checked, form_fields, read_form, refuse_unsupported
from cartdeck.server.event_stream import EventStream, event
from cartdeck.server.fields import Name, as_list, as_record
from cartdeck.server.json_response import json_response
from cartdeck.server.models.directory import Kind
from cartdeck.server.openai_api.recording import HEAD_BYTES, told_duration_s
from cartdeck.server.openai_api.transcript_segment import as_openai
from cartdeck.server.pace import Departure
from cartdeck.server.refusal import Refused, named_as
from cartdeck.server.service import Served, Service
from cartdeck.subtitles import as_srt, as_vtt
from cartdeck_protocol.errors import Code

_NAMES: Final = {"audio": "file", "task": "model"}
_UNKNOWN_LANGUAGE: Final = "und"
"""ISO 639's code for a language that nobody named: OpenAI's field is never empty."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _truth(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


class AudioRequest(BaseModel):
    """The texts of the form; the file beside them is not among these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Name
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    language: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    stream: Annotated[bool, BeforeValidator(_truth)] = False
    timestamp_granularities: Annotated[list[str], BeforeValidator(as_list)] | None = None
    # Ours, beside OpenAI's:
    beams: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=16)] | None = None


_UNSUPPORTED: Final = {
    "prompt": (("",), "A recording is heard without a lead."),
    "temperature": (("0", "0.0"), "Nothing is drawn: the likeliest text is taken."),
    "include": ((), "There are no log-probabilities of a transcript."),
    "chunking_strategy": (("auto",), "A recording is cut where nobody speaks."),
    "known_speaker_names": ((), "Speakers are not told apart."),
    "known_speaker_references": ((), "Speakers are not told apart."),
}


class AudioEndpoints:
    """The two, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def transcribe(self, request: Request) -> Any:
        return await self._answer(request, task="transcribe")

    async def translate(self, request: Request) -> Any:
        return await self._answer(request, task="translate")

    async def _answer(self, request: Request, *, task: str) -> Any:
        form = await read_form(request, self._service.options.limits)
        try:
            texts, files = form_fields(form)
            unknown = sorted(files.keys() - {"file"})
            if unknown:
                raise Refused(400, Code.UNKNOWN_ARGUMENT.name, f"{unknown[0]} is no file of this form.", unknown[0])
            if "file" in texts and "file" not in files:
                message = "file is a text; expected a file: a part of the form that has a filename."
                raise Refused(400, Code.BAD_ARGUMENT.name, message, "file")
            asked = checked(AudioRequest, refuse_unsupported(texts, _UNSUPPORTED))
            self._check(asked, task)
            if "file" not in files:
                raise Refused(400, Code.MISSING_ARGUMENT.name, "file is missing: the recording.", "file")
            await self._check_length(files["file"])
        except BaseException:
            await form.close()
            raise
        arguments = {"language": asked.language, "task": task, "beams": asked.beams, "audio": FilePieces(files["file"])}
        served = self._service.call(Kind.TRANSCRIPTION, asked.model, arguments, form=asked)
        hearing = Hearing(self._service.options.limits.audio_s)
        if asked.stream:
            pieces = _streamed(served, hearing, form.close)
            return EventStream(pieces, cancel=served.cancel, comment_s=self._service.options.comment_s)
        try:
            with Departure(request.receive, served.cancel), named_as(_NAMES):
                async with aclosing(served.batches()) as batches:
                    async for events in batches:
                        hearing.take(events)
        finally:
            await form.close()
        return hearing.response(asked, task, served.provenance)

    def _check(self, asked: AudioRequest, task: str) -> None:
        """Raises Refused 400 for fields that do not go together."""
        times = asked.timestamp_granularities or []
        if set(times) - {"segment"}:
            message = f"timestamp_granularities is {times}; times of segments alone are known here: ['segment']."
            raise Refused(400, Code.UNSUPPORTED.name, message, "timestamp_granularities")
        if times and asked.response_format != "verbose_json":
            message = "timestamp_granularities are for the response_format verbose_json."
            raise Refused(400, Code.BAD_ARGUMENT.name, message, "timestamp_granularities")
        if asked.stream and asked.response_format not in ("json", "text"):
            message = f"response_format {asked.response_format} cannot be streamed; expected json or text."
            raise Refused(400, Code.BAD_ARGUMENT.name, message, "response_format")
        if task == "translate" and (asked.stream or asked.language):
            name = "stream" if asked.stream else "language"
            raise Refused(400, Code.UNKNOWN_ARGUMENT.name, f"{name} is no field of a translation.", name)

    async def _check_length(self, file: UploadFile) -> None:
        """Raises Refused 413 for a recording that says of itself that it is too long."""
        head = await file.read(HEAD_BYTES)
        await file.seek(0)
        told_s = told_duration_s(head, file.size or 0)
        if told_s is not None and told_s > self._service.options.limits.audio_s:
            raise too_long(told_s, self._service.options.limits.audio_s)


def too_long(audio_s: float, most_s: float) -> Refused:
    message = f"The recording lasts {audio_s:.0f} s or more, and at most {most_s:g} s are taken."
    return Refused(413, "TOO_LARGE", message, "file")


class Hearing:
    """What a call says of a recording, as it comes. `most_s` is how long one may be."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._text: list[str] = []
        self._segments: list[Mapping[str, Any]] = []

    def take(self, events: Sequence[Event]) -> str:
        """The text that came with these events. Raises Refused 413 once the recording turns out to be too long."""
        news: list[str] = []
        for one in events:
            if isinstance(one, Data) and not one.output:
                news.append(one.text)
            elif isinstance(one, Data) and one.output == "segments":
                segment = as_record(one.value)
                self._segments.append(segment)
                if segment["end_s"] > self._most_s:
                    raise too_long(segment["end_s"], self._most_s)
        self._text += news
        return "".join(news)

    @property
    def text(self) -> str:
        return "".join(self._text).strip()

    def response(self, asked: AudioRequest, task: str, provenance: Mapping[str, Any]) -> Response:
        """The whole answer in the form that was asked for."""
        match asked.response_format:
            case "text":
                return Response(self.text + "\n", media_type="text/plain")
            case "srt":
                return Response(as_srt(self._segments), media_type="application/x-subrip")
            case "vtt":
                return Response(as_vtt(self._segments), media_type="text/vtt")
            case "verbose_json":
                return json_response(self._verbose(task, provenance))
            case "json":
                return json_response({"text": self.text, "usage": self.usage(provenance)})

    def usage(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "duration", "seconds": self._duration_s(provenance)}

    def _duration_s(self, provenance: Mapping[str, Any]) -> float:
        last = self._segments[-1]["end_s"] if self._segments else 0.0
        return float(_settings(provenance).get("audio_s") or last)

    def _verbose(self, task: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "task": task,
            "language": _settings(provenance).get("language") or _UNKNOWN_LANGUAGE,
            "duration": self._duration_s(provenance),
            "text": self.text,
            "segments": [as_openai(number, one) for number, one in enumerate(self._segments)],
            "usage": self.usage(provenance),
        }


def _settings(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the cartridge says of the recording: its language and length."""
    return as_record(provenance.get("settings"))


async def _streamed(served: Served, hearing: Hearing, close: Any) -> AsyncGenerator[bytes]:
    """Deltas as they are understood, then the whole text."""
    try:
        with named_as(_NAMES):
            async with aclosing(served.batches()) as batches:
                async for events in batches:
                    news = hearing.take(events)
                    yield event({"type": "transcript.text.delta", "delta": news}) if news else b""
        usage = hearing.usage(served.provenance)
        yield event({"type": "transcript.text.done", "text": hearing.text, "usage": usage})
    finally:
        await close()
