"""Owns `/v1/chat/completions` and `/v1/completions`.

It does not know what the fields become, nor what answers look like.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from cartdeck.server.body import read_json
from cartdeck.server.chat_answer import ChatChunks, chat_choices
from cartdeck.server.completion_answer import CompletionChunks, completion_choices
from cartdeck.server.directory import Kind
from cartdeck.server.event_stream import DONE, EventStream
from cartdeck.server.json_response import json_response
from cartdeck.server.refusal import named_as
from cartdeck.server.service import Served, Service, cancelling, collect_all
from cartdeck.server.text_answer import ChunkWriter, Envelope, Texts
from cartdeck.server.text_request import FIELD_NAMES, ChatRequest, CompletionRequest


class TextEndpoints:
    """The two, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Any:
        limits = self._service.options.limits
        asked = await read_json(request, ChatRequest, limits)
        names = {**FIELD_NAMES, "max-tokens": asked.tokens_field}
        arguments = asked.arguments(most_images=limits.images)
        served = self._service.call(Kind.CHAT, asked.model, arguments, form=asked, needs=asked.needs())
        if asked.stream:
            pieces = self._chat_pieces(served, asked, names)
            return EventStream(pieces, cancel=served.cancel, comment_s=self._service.options.comment_s)
        with named_as(names):
            [result] = await collect_all([served], request)
        texts = Texts(asked.texts)
        texts.add_result(result)
        texts.finish(result.provenance)
        choices = chat_choices(texts, with_logprobs=bool(asked.logprobs))
        return json_response(Envelope("chatcmpl", "chat.completion", asked.model).whole(choices, [result.provenance]))

    async def _chat_pieces(self, served: Served, asked: ChatRequest, names: Mapping[str, str]) -> AsyncGenerator[bytes]:
        texts = Texts(asked.texts)
        envelope = Envelope("chatcmpl", "chat.completion.chunk", asked.model)
        writer = ChunkWriter(envelope, with_usage=asked.with_usage)
        chunks = ChatChunks(writer, texts)
        with named_as(names):
            async with aclosing(served.batches()) as batches:
                async for events in batches:
                    yield chunks.news() if texts.add_events(events) else b""
        provenance = served.provenance
        yield chunks.end(provenance) + writer.last([provenance]) + DONE

    async def complete(self, request: Request) -> Any:
        limits = self._service.options.limits
        asked = await read_json(request, CompletionRequest, limits)
        prompts = asked.prompts()
        calls = [
            self._service.call(Kind.COMPLETION, asked.model, asked.arguments(prompt), form=asked) for prompt in prompts
        ]
        if asked.stream:
            pieces = self._completion_pieces(asked, prompts, calls)
            return EventStream(pieces, cancel=cancelling(calls), comment_s=self._service.options.comment_s)
        with named_as(FIELD_NAMES):
            results = await collect_all(calls, request)
        choices: list[dict[str, Any]] = []
        for index, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            texts = Texts(asked.texts)
            texts.add_result(result)
            texts.finish(result.provenance)
            choices += completion_choices(
                texts,
                first_index=index * asked.texts,
                lead=prompt if asked.echo else "",
                with_logprobs=asked.logprobs is not None,
            )
        envelope = Envelope("cmpl", "text_completion", asked.model)
        return json_response(envelope.whole(choices, [one.provenance for one in results]))

    async def _completion_pieces(
        self, asked: CompletionRequest, prompts: list[str], calls: list[Served]
    ) -> AsyncGenerator[bytes]:
        writer = ChunkWriter(Envelope("cmpl", "text_completion", asked.model), with_usage=asked.with_usage)
        with named_as(FIELD_NAMES):
            for index, (prompt, served) in enumerate(zip(prompts, calls, strict=True)):
                texts = Texts(asked.texts)
                chunks = CompletionChunks(
                    writer, texts, first_index=index * asked.texts, lead=prompt if asked.echo else ""
                )
                async with aclosing(served.batches()) as batches:
                    async for events in batches:
                        yield chunks.news() if texts.add_events(events) else b""
                yield chunks.end(served.provenance)
        yield writer.last([one.provenance for one in calls]) + DONE
