"""Owns the requests for text, `/v1/chat/completions` and `/v1/completions`: their fields, and the arguments of a cap
that they become.

It does not know how the answer is written. What messages, tools and schemas may hold is the cartridge's to judge.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from cartdeck.catalog.entry import Capability
from cartdeck.server.body import refuse_unsupported
from cartdeck.server.fields import (
    HARMLESS,
    Count,
    LogitBias,
    Name,
    Noted,
    Seed,
    Stops,
    Strict,
    Whole,
    as_list,
    as_record,
)
from cartdeck_protocol.errors import Code, failure

MOST_TOKENS: Final = 1_048_576
"""What the caps take; more than fits the context counts as what fits, so a larger number means the same."""
MOST_PROMPTS: Final = 128
_NULL_WHEN_SENT_BACK: Final = ("annotations", "audio", "function_call", "refusal", "tool_calls")
"""What an answer of OpenAI's client has when it is sent back as a message, mostly null or empty."""

FIELD_NAMES: Final = {"json-schema": "response_format", "texts": "input", "projector": "messages", "lora": "model"}
"""The request's field for an argument of a cap, where they differ by more than a - for a _."""


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Taken, and nothing is padded."""


class TextRequest(Noted):
    """What both requests have."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Count | None = None
    stop: Stops | None = None
    seed: Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    # Ours, beside OpenAI's:
    top_k: Whole | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    grammar: str | None = None
    deterministic: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "TextRequest":
        if self.stream_options is not None and not self.stream:
            raise failure(Code.BAD_ARGUMENT, "stream_options are for a stream.", argument="stream_options")
        _check_tokens(self.max_tokens, "max_tokens")
        return self

    @property
    def texts(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """The arguments of the caps that both have in common; what was left out is left to the cap's defaults."""
        given = {
            "temperature": self.temperature,
            "top-p": self.top_p,
            "top-k": self.top_k,
            "min-p": self.min_p,
            "repeat-penalty": self.repeat_penalty,
            "presence-penalty": self.presence_penalty,
            "frequency-penalty": self.frequency_penalty,
            "logit-bias": self.logit_bias or None,
            "seed": self.seed,
            "n": self.n if self.n != 1 else None,
            "stop": self.stop or None,
            "grammar": self.grammar,
            "deterministic": self.deterministic or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def _check_tokens(count: int | None, name: str) -> None:
    if count is not None and count < 1:
        raise failure(Code.BAD_ARGUMENT, f"{name} is {count}; expected 1 or more.", argument=name)


class JsonSchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """A text is held to its schema either way."""


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def schema_of_text(self) -> dict[str, Any] | None:
        """The schema that the text is held to. Raises MISSING_ARGUMENT."""
        if self.type == "json_object":
            return {"type": "object"}
        if self.type == "text":
            return None
        if self.json_schema is None:
            message = "response_format of the type json_schema needs json_schema, a record with schema."
            raise failure(Code.MISSING_ARGUMENT, message, argument="response_format.json_schema")
        return self.json_schema.schema_


class ChatRequest(TextRequest):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        return refuse_unsupported(given, _NOT_IN_CHAT)

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatRequest":
        _check_tokens(self.max_completion_tokens, "max_completion_tokens")
        one, other = self.max_tokens, self.max_completion_tokens
        if one is not None and other is not None and one != other:
            message = f"max_completion_tokens is {other} and max_tokens {one}; they mean the same: give one of them."
            raise failure(Code.BAD_ARGUMENT, message, argument="max_completion_tokens")
        if self.top_logprobs and not self.logprobs:
            raise failure(Code.BAD_ARGUMENT, "top_logprobs needs logprobs: true.", argument="top_logprobs")
        if not self.tools and self.tool_choice not in (None, "auto", "none"):
            raise failure(
                Code.BAD_ARGUMENT, "tool_choice asks for a call, and there are no tools.", argument="tool_choice"
            )
        may_call_twice = bool(self.tools) and self.tool_choice in (None, "auto", "required")  # a tool by name, once
        if may_call_twice and self.parallel_tool_calls is False:
            message = (
                "parallel_tool_calls: false cannot be served here: an answer may hold several calls. Leave it out, or "
                "name the tool in tool_choice: it is called once then."
            )
            raise failure(Code.UNSUPPORTED, message, argument="parallel_tool_calls")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def tokens_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"

    def needs(self) -> dict[str, Capability]:
        """The fields that ask for more than a text, and for what."""
        needs: dict[str, Capability] = {}
        if self.tools and self.tool_choice != "none":
            needs["tools"] = Capability.TOOLS
        if any(_images_in(one) for one in self.messages):
            needs["messages"] = Capability.VISION
        return needs

    def arguments(self, *, most_images: int) -> dict[str, Any]:
        """The arguments of the cap `chat`. Raises BAD_ARGUMENT for more images than are taken."""
        messages = [_cleared(one) for one in self.messages]
        images = sum(_images_in(one) for one in messages)
        if images > most_images:
            message = f"The dialogue has {images} images, and at most {most_images} are taken."
            raise failure(Code.BAD_ARGUMENT, message, argument="messages")
        given: dict[str, Any] = {"messages": {"messages": messages}, **self.sampling()}
        if self.most_tokens is not None:
            given["max-tokens"] = min(self.most_tokens, MOST_TOKENS)
        if self.logprobs:
            given |= {"logprobs": True, "top-logprobs": self.top_logprobs or 0}
        if self.response_format is not None and (schema := self.response_format.schema_of_text()) is not None:
            given["json-schema"] = schema
        if self.tools:
            given["tools"] = self.tools
        if self.tool_choice is not None and (self.tools or self.tool_choice not in ("auto", "none")):
            given["tool-choice"] = json.dumps(self.tool_choice)
        return given


class CompletionRequest(TextRequest):
    prompt: Any
    echo: bool | None = None
    best_of: Count | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        return refuse_unsupported(given, _NOT_IN_COMPLETIONS)

    @model_validator(mode="after")
    def _check_completion(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.texts:
            message = f"best_of is {self.best_of} and n {self.texts}; all texts that are made are given: leave it out."
            raise failure(Code.UNSUPPORTED, message, argument="best_of")
        if self.echo and self.logprobs is not None:
            message = "echo beside logprobs cannot be served: the prompt's own tokens have no logprobs here."
            raise failure(Code.UNSUPPORTED, message, argument="echo")
        return self

    def prompts(self) -> list[str]:
        """The prompts, at least one. Raises BAD_ARGUMENT or UNSUPPORTED."""
        given = as_list(self.prompt)
        if given and all(isinstance(one, str) for one in given) and len(given) <= MOST_PROMPTS:
            return given
        if given and all(isinstance(one, int | list) and not isinstance(one, bool) for one in given):
            message = "prompt holds token ids, which cannot be taken here; expected text."
            raise failure(Code.UNSUPPORTED, message, argument="prompt")
        message = f"prompt is no text and no list of 1 to {MOST_PROMPTS} texts."
        raise failure(Code.BAD_ARGUMENT, message, argument="prompt")

    def arguments(self, prompt: str) -> dict[str, Any]:
        """The arguments of the cap `generate-text`."""
        given: dict[str, Any] = {"prompt": prompt, **self.sampling()}
        if self.max_tokens is not None:
            given["max-tokens"] = min(self.max_tokens, MOST_TOKENS)
        if self.logprobs is not None:
            given |= {"logprobs": True, "top-logprobs": self.logprobs}
        return given


def _cleared(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what is null or empty in an answer that is sent back."""
    return {
        name: value
        for name, value in message.items()
        if value not in (None, [], {}) or name not in _NULL_WHEN_SENT_BACK
    }


def _images_in(message: Mapping[str, Any]) -> int:
    parts = (as_record(one) for one in as_list(message.get("content")))
    return sum(one.get("type") == "image_url" for one in parts)


_NOT_IN_CHAT: Final = {
    **HARMLESS,
    "functions": ((), "Use tools."),
    "function_call": ((), "Use tool_choice."),
    "audio": ((), "Answers are text."),
    "modalities": ((["text"],), 'Answers are text: ["text"].'),
    "prediction": ((), "Leave it out."),
    "reasoning_effort": ((), "Leave it out."),
    "verbosity": ((), "Leave it out."),
    "web_search_options": ((), "Nothing is searched here."),
    "moderation": ((), "Leave it out."),
}
_NOT_IN_COMPLETIONS: Final = {**HARMLESS, "suffix": (("",), "The caps only continue a text.")}
