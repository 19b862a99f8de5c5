"""Owns `/v1/chat/completions` and `/v1/completions`.

It does not know what the fields become, nor what answers look like.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from cartdeck.server.body import read_json
from cartdeck.server.event_stream import DONE, EventStream
from cartdeck.server.guards.guarding import Guarded, while_waiting
from cartdeck.server.guards.question import USER, Turn, turns_of
from cartdeck.server.json_response import json_response
from cartdeck.server.models.directory import Kind
from cartdeck.server.openai_api.chat_answer import ChatChunks, chat_choices
from cartdeck.server.openai_api.completion_answer import CompletionChunks, completion_choices
from cartdeck.server.openai_api.text_answer import ChunkWriter, Envelope, Texts
from cartdeck.server.openai_api.text_request import FIELD_NAMES, ChatRequest, CompletionRequest
from cartdeck.server.refusal import named_as
from cartdeck.server.service import Served, Service, cancelling, collect_all


class TextEndpoints:
    """The two, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Any:
        limits = self._service.options.limits
        asked = await read_json(request, ChatRequest, limits)
        names = {**FIELD_NAMES, "prompt": "messages", "max-tokens": asked.tokens_field}
        arguments = asked.arguments(most_images=limits.images)
        served = self._service.call(Kind.CHAT, asked.model, arguments, form=asked, needs=asked.needs())
        guarded = Guarded(self._service, served.guards, [turns_of(asked.messages)] if served.guards else [])
        if asked.stream:
            pieces = self._chat_pieces(served, asked, guarded, names)
            cancel = cancelling([guarded, served])
            return EventStream(pieces, cancel=cancel, comment_s=self._service.options.comment_s)
        await guarded.before_all(request, "messages")
        with named_as(names):
            [result] = await collect_all([served], request)
        texts = Texts(asked.texts)
        texts.add_result(result)
        texts.finish(result.provenance)
        await guarded.after_all(request, texts, result.provenance)
        choices = chat_choices(texts, with_logprobs=bool(asked.logprobs))
        return json_response(Envelope("chatcmpl", "chat.completion", asked.model).whole(choices, [result.provenance]))

    async def _chat_pieces(
        self, served: Served, asked: ChatRequest, guarded: Guarded, names: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        texts = Texts(asked.texts)
        envelope = Envelope("chatcmpl", "chat.completion.chunk", asked.model)
        writer = ChunkWriter(envelope, with_usage=asked.with_usage)
        chunks = ChatChunks(writer, texts)
        async for waiting in self._before(guarded, "messages"):
            yield waiting
        with named_as(names):
            async with aclosing(served.batches()) as batches:
                async for events in batches:
                    yield chunks.news() if guarded.lets_out(texts.add_events(events), texts) else b""
        provenance = served.provenance
        async for waiting in self._after(guarded, texts, provenance):
            yield waiting
        yield chunks.end(provenance) + writer.last([provenance]) + DONE

    async def complete(self, request: Request) -> Any:
        limits = self._service.options.limits
        asked = await read_json(request, CompletionRequest, limits)
        prompts = asked.prompts()
        calls = [
            self._service.call(Kind.COMPLETION, asked.model, asked.arguments(prompt), form=asked) for prompt in prompts
        ]
        guards = calls[0].guards
        guarded = Guarded(self._service, guards, [[Turn(USER, prompt)] for prompt in prompts] if guards else [])
        if asked.stream:
            pieces = self._completion_pieces(asked, prompts, calls, guarded)
            cancel = cancelling([guarded, *calls])
            return EventStream(pieces, cancel=cancel, comment_s=self._service.options.comment_s)
        await guarded.before_all(request, "prompt")
        with named_as(FIELD_NAMES):
            results = await collect_all(calls, request)
        choices: list[dict[str, Any]] = []
        for index, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            texts = Texts(asked.texts)
            texts.add_result(result)
            texts.finish(result.provenance)
            await guarded.after_all(request, texts, result.provenance, index)
            choices += completion_choices(
                texts,
                first_index=index * asked.texts,
                lead=prompt if asked.echo else "",
                with_logprobs=asked.logprobs is not None,
            )
        envelope = Envelope("cmpl", "text_completion", asked.model)
        return json_response(envelope.whole(choices, [one.provenance for one in results]))

    async def _completion_pieces(
        self, asked: CompletionRequest, prompts: list[str], calls: list[Served], guarded: Guarded
    ) -> AsyncGenerator[bytes]:
        writer = ChunkWriter(Envelope("cmpl", "text_completion", asked.model), with_usage=asked.with_usage)
        async for waiting in self._before(guarded, "prompt"):
            yield waiting
        with named_as(FIELD_NAMES):
            for index, (prompt, served) in enumerate(zip(prompts, calls, strict=True)):
                texts = Texts(asked.texts)
                chunks = CompletionChunks(
                    writer, texts, first_index=index * asked.texts, lead=prompt if asked.echo else ""
                )
                async with aclosing(served.batches()) as batches:
                    async for events in batches:
                        yield chunks.news() if guarded.lets_out(texts.add_events(events), texts, index) else b""
                provenance = served.provenance
                async for waiting in self._after(guarded, texts, provenance, index):
                    yield waiting
                yield chunks.end(provenance)
        yield writer.last([one.provenance for one in calls]) + DONE

    async def _before(self, guarded: Guarded, param: str) -> AsyncGenerator[bytes]:
        """Nothing, now and then, until the guards have said that the request may be answered."""
        if guarded.is_before:
            async with aclosing(while_waiting(guarded.before(param), self._service.options.comment_s)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _after(
        self, guarded: Guarded, texts: Texts, provenance: dict[str, Any], index: int = 0
    ) -> AsyncGenerator[bytes]:
        """Nothing, now and then, until the guards have judged the answers to one prompt."""
        if guarded.has_guards:
            texts.finish(provenance)
            work = guarded.after(texts, provenance, index)
            async with aclosing(while_waiting(work, self._service.options.comment_s)) as pieces:
                async for piece in pieces:
                    yield piece
