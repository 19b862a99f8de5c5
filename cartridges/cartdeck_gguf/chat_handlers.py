"""Owns the caps `chat` and `describe-image`: a dialogue in, an answer out.

It does not know how texts are made, nor templates.
"""

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from cartdeck_gguf.conversation import Asked, Question, ask, release
from cartdeck_gguf.generation import Generation, Piece
from cartdeck_gguf.reporting import follow
from cartdeck_gguf.serving import cartridge, instance, new_provenance
from cartdeck_gguf.text_handlers import INSTANCE_ARGUMENTS, SAMPLING_ARGUMENTS, write_piece
from cartdeck_modelkit.dialogue.call_events import write_with_calls
from cartdeck_modelkit.dialogue.messages import question_about, read_dialogue
from cartdeck_modelkit.dialogue.tool_stream import CallSplitter
from cartdeck_modelkit.dialogue.tools import ToolUse
from cartdeck_modelkit.sampling import SamplingSettings, read_settings
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Output, Request

ONE_TEXT: Final = {"n": 1, "logprobs": False, "top-logprobs": 0}
"""What `describe-image` has no argument for."""


@cartridge.handles("chat", needs=("messages", *INSTANCE_ARGUMENTS, *SAMPLING_ARGUMENTS))
async def chat(request: Request, output: Output) -> None:
    """Answers the dialogue."""
    settings = read_settings(request.__getitem__)
    dialogue = read_dialogue(request["messages"], system=request["system"])
    tool_use = ToolUse.read(request["tools"], request["tool-choice"])
    if tool_use.callable:
        check_free(settings)
    await answer(request, output, Asked(dialogue, tool_use, request["chat-template"]), settings=settings)


IMAGE_ARGUMENTS: Final = tuple(name for name in SAMPLING_ARGUMENTS if name not in ONE_TEXT)


@cartridge.handles("describe-image", needs=("image", "prompt", *INSTANCE_ARGUMENTS, *IMAGE_ARGUMENTS))
async def describe_image(request: Request, output: Output) -> None:
    """Says what the image shows."""
    if not request["image"]:
        raise failure(Code.EMPTY_INPUT, "the image has no bytes", argument="image")
    settings = read_settings(_argument_of(request))
    dialogue = question_about(request["image"], request["prompt"], system=request["system"])
    asked = Asked(dialogue, template=request["chat-template"], images_in="image")
    await answer(request, output, asked, settings=settings)


def _argument_of(request: Request) -> Callable[[str], Any]:
    return lambda name: ONE_TEXT[name] if name in ONE_TEXT else request[name]


def check_free(settings: SamplingSettings) -> None:
    """Raises `BAD_ARGUMENT` for what cannot be asked for beside tools."""
    for name, is_given in (
        ("grammar", settings.grammar is not None),
        ("json-schema", settings.json_schema is not None),
        ("n", settings.texts > 1),
    ):
        if is_given:
            message = f"{name} is given beside tools, which the answer is held to already; expected one of them"
            raise failure(Code.BAD_ARGUMENT, message, argument=name)


async def answer(request: Request, output: Output, asked: Asked, *, settings: SamplingSettings) -> None:
    """Makes the answer and passes it on as it comes; what it was made of goes into the provenance, however it ends."""
    provenance = new_provenance(request["model"])
    provenance.seed = settings.seed
    question: Question | None = None
    generation: Generation | None = None
    try:
        await asked.decode()
        model = await instance.ready(request, output, provenance, sees_images=bool(asked.dialogue.images))
        question = await ask(instance, model, asked)
        generation = Generation(question.prompt, settings, constraint=question.constraint)
        calls = CallSplitter(question.syntax) if question.syntax is not None else None
        async with aclosing(follow(instance, generation, output, is_plain=calls is None)) as pieces:
            async for piece in pieces:
                if calls is None:
                    await write_piece(piece, generation, output)
                else:
                    await write_calls(piece, generation, output, calls)
    except CancelledError:
        if generation is not None:
            generation.finish_reason = "cancelled"
        raise
    finally:
        if question is not None:
            release(instance, question)
        if generation is not None:
            generation.describe(provenance)
        output.finish(provenance=provenance.record())


async def write_calls(piece: Piece, generation: Generation, output: Output, calls: CallSplitter) -> None:
    """Text goes on as it is, a call to `events` when it is whole."""
    is_last, is_cut = piece.finish_reason is not None, piece.finish_reason != "stop"
    await write_with_calls(piece.text, calls, output, is_last=is_last, is_cut=is_cut)
    if piece.records:
        await write_piece(Piece(index=piece.index, records=piece.records), generation, output)
