"""Owns making a prompt of a dialogue for the model in memory: its template, its tools, its eyes.

It does not know requests' ends, nor how a prompt is computed.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cartdeck_gguf.attachments import sees_nothing
from cartdeck_gguf.instance import Instance
from cartdeck_gguf.loading import LoadedModel, import_engine
from cartdeck_gguf.prompt import Prompt
from cartdeck_gguf.tokenizer import Tokenizer
from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.dialogue.chat_template import ChatTemplate
from cartdeck_modelkit.dialogue.messages import Dialogue
from cartdeck_modelkit.dialogue.tools import (
    BARE,
    PYTHON_TAG,
    TAGGED,
    CallSyntax,
    ToolUse,
    call_grammar,
    explain_tools,
    fit_call_ids,
    syntax_of,
)
from cartdeck_modelkit.image import RgbImage, decode_image
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.projector import SeenImage
    from cartdeck_gguf.prompt import Insert

_compiled: dict[str, ChatTemplate] = {}


@dataclass(slots=True)
class Asked:
    """A request's dialogue; `template` is one to use instead of the model's own, `images_in` the argument that its
    images came in, `pictures` those images once they are decoded."""

    dialogue: Dialogue
    tool_use: ToolUse = field(default_factory=ToolUse)
    template: str | None = None
    images_in: str = "messages"
    pictures: list[RgbImage] = field(default_factory=list[RgbImage])

    async def decode(self) -> None:
        """Decodes the images: before a model is obtained and loaded for them. Raises `BAD_IMAGE` and `EMPTY_INPUT`."""
        argument, images = self.images_in, self.dialogue.images
        self.pictures = [await asyncio.to_thread(decode_image, data, argument=argument) for data in images]


@dataclass(slots=True)
class Question:
    """A dialogue made ready: what the model goes on from, and what its answer is held to."""

    prompt: str | Prompt
    syntax: CallSyntax | None = None
    constraint: Constraint | None = None
    images: "list[SeenImage]" = field(default_factory=list["SeenImage"])


async def ask(instance: Instance, model: LoadedModel, asked: Asked) -> Question:
    """The dialogue as the model takes it; its pictures are given up.

    Raises `UNSUPPORTED` for a model without a template, and for images without a projector; what `ChatTemplate` raises;
    `BAD_IMAGE` for one that the projector cannot take; `UNSUPPORTED_SCHEMA` for tools that a text cannot be held to.
    """
    dialogue, tool_use, template = asked.dialogue, asked.tool_use, asked.template
    pictures, asked.pictures = asked.pictures, []
    if dialogue.images and instance.projector is None:
        raise sees_nothing(model.model.path.name, "none lies beside it")
    known = await asyncio.to_thread(template_of, model, template, for_tools=bool(tool_use.callable))
    syntax = _syntax_for(known, model) if tool_use.callable else None
    fit_call_ids(dialogue, known)
    if syntax is None:
        explain_tools(dialogue, tool_use.callable)
        syntax = TAGGED if tool_use.callable else None
        definitions = None
    else:
        definitions = [tool.definition for tool in tool_use.callable]
    text = await asyncio.to_thread(known.render, dialogue.messages, tools=definitions)
    question = Question(text, syntax)
    if syntax is not None:
        question.constraint = await _hold(instance, tool_use, syntax)
    if dialogue.images:
        place = asyncio.wrap_future(
            instance.owner.start(lambda: _place_images(instance, model, text, dialogue.marker, pictures, question))
        )
        try:
            question.prompt = await asyncio.shield(place)
        except BaseException:
            release(instance, question)
            raise
    return question


def release(instance: Instance, question: Question) -> None:
    """Frees what is kept of the question's images, once the owner's thread has done with them."""
    if question.images:
        instance.owner.start(lambda: [image.close() for image in question.images])


def template_of(model: LoadedModel, given: str | None, *, for_tools: bool = False) -> ChatTemplate:
    """The template that was given, or the model's own; the one for tools where it has one.

    Raises `UNSUPPORTED` for a model without.
    """
    native, vocabulary = import_engine().NATIVE, model.model.vocabulary
    source: str | None = given
    for name in (b"tool_use", None) if for_tools else (None,):
        if source is None:
            found = native.llama_model_chat_template(model.model.handle, name)
            source = found.decode("utf-8", errors="replace") if found else None
    if not source:
        raise failure(
            Code.UNSUPPORTED,
            f"{model.model.path.name} has no chat template: it was not made for dialogues, or its file leaves it out; "
            "name one with chat-template, or use generate-text",
            argument="model",
            phase="inference",
        )
    key = hashlib.sha256(source.encode()).hexdigest()
    if key not in _compiled:
        ends = (native.llama_vocab_bos(vocabulary), native.llama_vocab_eos(vocabulary))
        names = [native.llama_vocab_get_text(vocabulary, one) if one >= 0 else b"" for one in ends]
        bos, eos = ((name or b"").decode("utf-8", errors="replace") for name in names)
        _compiled.clear()  # a process has one model: a second template is one that was given
        _compiled[key] = ChatTemplate(source, bos=bos, eos=eos)
    return _compiled[key]


def _syntax_for(template: ChatTemplate, model: LoadedModel) -> CallSyntax | None:
    """How calls are written with this template; None where their closing marks are tokens of control, which show in no
    text."""
    syntax = syntax_of(template)
    mark = PYTHON_TAG if syntax is BARE else syntax.opening if syntax is not None else ""
    if syntax is None or not mark:
        return syntax
    if model.vocabulary.unknown_characters(mark):
        return syntax if syntax is BARE else None
    token, native = model.model.tokenize(mark)[-1], import_engine().NATIVE
    is_control = native.llama_vocab_is_control(model.model.vocabulary, token)
    if not is_control or native.llama_vocab_get_text(model.model.vocabulary, token) != mark.encode():
        return None if is_control and syntax.opening else syntax
    return None if syntax.closing else syntax.behind(token)


async def _hold(instance: Instance, tool_use: ToolUse, syntax: CallSyntax) -> Constraint:
    maker = await instance.constrainer.maker()
    required, single = tool_use.is_required, tool_use.is_single
    grammar = call_grammar(tool_use.callable, syntax, is_required=required, is_single=single)
    try:
        return await asyncio.to_thread(maker.from_lark, grammar)
    except CartdeckError as error:
        message = f"the tools' parameters cannot be held to: {error.message}"
        raise failure(Code.UNSUPPORTED_SCHEMA, message, argument="tools") from None


def _place_images(
    instance: Instance, model: LoadedModel, text: str, marker: str, pictures: Sequence[RgbImage], question: Question
) -> Prompt:
    """The prompt with the images in the places of their markers; on the owner's thread."""
    assert instance.projector is not None
    first, *others = text.split(marker)
    if len(others) != len(pictures):
        raise failure(
            Code.UNSUPPORTED,
            f"the chat template shows {len(others)} of the {len(pictures)} images",
            argument="chat-template",
            phase="inference",
        )
    if model.model.exceeds(text, model.context_size):
        raise failure(
            Code.CONTEXT_OVERFLOW,
            f"a dialogue of {len(text):,} characters does not fit a context of {model.context_size:,} tokens",
            argument="messages",
            phase="inference",
            details={"prompt_tokens": None, "context_size": model.context_size},
        )
    tokenizer = Tokenizer(model.model, model.vocabulary)
    tokenizer.check(first)
    parts: list[Sequence[int] | Insert] = [model.model.tokenize(first)]
    for picture, segment in zip(pictures, others, strict=True):
        for part in instance.projector.read(picture):
            if not isinstance(part, list):
                question.images.append(part)
            parts.append(part)
        parts.append(tokenizer.encode(segment, adds_special=False))
    if others and not others[-1]:  # nothing is drawn from an image: a token has to end the prompt
        parts.append(tokenizer.encode("\n", adds_special=False))
    return Prompt.of(parts)
