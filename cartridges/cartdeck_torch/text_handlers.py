"""Owns the caps whose answers are texts: continued, answered, described, written down.

It does not know torch.
"""

import asyncio
from typing import Final

from cartdeck_modelkit.audio import decode_audio
from cartdeck_modelkit.dialogue.messages import question_about, read_dialogue
from cartdeck_modelkit.dialogue.tools import ToolUse
from cartdeck_modelkit.image import decode_image
from cartdeck_modelkit.provenance import Provenance
from cartdeck_modelkit.refusal import refuse_given
from cartdeck_modelkit.sampling import SamplingSettings, read_settings
from cartdeck_sdk import Output, Request
from cartdeck_torch.answer import AnswerWriter
from cartdeck_torch.describing import Description, pass_on
from cartdeck_torch.family import CAUSAL, SEEING, Task
from cartdeck_torch.generation import Generation, Question, check_beside_tools
from cartdeck_torch.serving import INSTANCE_ARGUMENTS, answering, cartridge, instance
from cartdeck_torch.speech import Transcription
from cartdeck_torch.transcript import write_transcript

SPEECH_RATE_HZ: Final = 16_000
SAMPLING: Final = ("max-tokens", "temperature", "top-k", "top-p", "min-p", "repeat-penalty")
INSTANCE: Final = (*INSTANCE_ARGUMENTS, "context-size", "kv-cache")
NOT_HERE: Final = ("grammar", "lora", "projector")
NO_GRAMMAR: Final = "(GBNF) cannot be held to by this cartridge; json-schema can"
NO_ADAPTERS: Final = "adapters cannot be taken by this cartridge yet; merge them into the model's files"
NO_PROJECTOR: Final = "is for GGUF models: a model in safetensors files has its eyes in them"
NOT_FOR_CAPTIONS: Final = (
    "system", "chat-template", "temperature", "top-k", "top-p", "min-p", "repeat-penalty", "frequency-penalty",
    "presence-penalty", "logit-bias", "json-schema", "stop", "kv-cache",
)  # fmt: skip
ONE_TEXT: Final = {"n": 1, "logprobs": False, "top-logprobs": 0}
"""What `describe-image` has no argument for."""


@cartridge.handles("generate-text", needs=("prompt", *INSTANCE, *SAMPLING))
async def generate_text(request: Request, output: Output) -> None:
    """Continues the prompt; the text leaves as its tokens come."""
    refuse_unserved(request)
    settings = read_settings(request.__getitem__)
    async with answering(request, output, request["model"]) as provenance:
        await instance.ready(request, output, provenance, task=Task.GENERATE)
        await _make_text(Generation(request["prompt"], settings.max_tokens, settings=settings), output, provenance)


@cartridge.handles("chat", needs=("messages", *INSTANCE, *SAMPLING))
async def chat(request: Request, output: Output) -> None:
    """Answers a dialogue, by the model's own template."""
    refuse_unserved(request)
    settings = read_settings(request.__getitem__)
    dialogue = read_dialogue(request["messages"], system=request["system"])
    question = Question(dialogue, ToolUse.read(request["tools"], request["tool-choice"]), request["chat-template"])
    if question.tool_use.callable:
        check_beside_tools(settings)
    await _answer(request, output, question, settings=settings, task=Task.GENERATE)


@cartridge.handles("describe-image", needs=("image", "max-tokens", *INSTANCE, *SAMPLING))
async def describe_image(request: Request, output: Output) -> None:
    """Says what an image shows: a caption, or the answer of a model that sees to what it is asked."""
    refuse_unserved(request)
    settings = read_settings(lambda name: ONE_TEXT[name] if name in ONE_TEXT else request[name])
    async with answering(request, output, request["model"]) as provenance:
        image = await asyncio.to_thread(decode_image, request["image"])
        loaded = await instance.ready(request, output, provenance, task=Task.DESCRIBE)
        provenance.settings["frames"] = image.frames
        if loaded.folder.model_type in (*CAUSAL, *SEEING):
            dialogue = question_about(request["image"], request["prompt"], system=request["system"])
            question = Question(dialogue, template=request["chat-template"], pictures=[image])
            generation = Generation(None, settings.max_tokens, settings=settings, question=question)
            await _make_text(generation, output, provenance)
            return
        refuse_given(request, *NOT_FOR_CAPTIONS)
        # the default is a question, which a captioning model takes for the beginning of its text
        prompt = request["prompt"] if request.is_given("prompt") else None
        description = Description(prompt, request["max-tokens"])
        job = instance.worker.submit(loaded.handle, lambda model, job: model.describe(image, description, job))
        try:
            await pass_on(job, description, output, what="Describing")
        finally:
            description.note(provenance)


async def _answer(
    request: Request, output: Output, question: Question, *, settings: SamplingSettings, task: Task
) -> None:
    async with answering(request, output, request["model"]) as provenance:
        images = question.dialogue.images
        question.pictures = [await asyncio.to_thread(decode_image, data, argument="messages") for data in images]
        await instance.ready(request, output, provenance, task=task)
        generation = Generation(None, settings.max_tokens, settings=settings, question=question)
        await _make_text(generation, output, provenance)


async def _make_text(generation: Generation, output: Output, provenance: Provenance) -> None:
    """Makes the texts with the model that is ready, and passes them on as they come."""
    provenance.seed = generation.settings.seed
    writer = AnswerWriter(generation, output)
    job = instance.submit(lambda model, job: model.generate(generation, job))
    try:
        await pass_on(job, generation, output, what="Generating", write=writer.write)
        await writer.finish()
    finally:
        generation.note(provenance)
        provenance.timing.first_token_s = generation.first_token_s


def refuse_unserved(request: Request) -> None:
    """Raises `UNSUPPORTED` for what no model can be asked for here."""
    for name, why in zip(NOT_HERE, (NO_GRAMMAR, NO_ADAPTERS, NO_PROJECTOR), strict=True):
        refuse_given(request, name, why=why)


@cartridge.handles("transcribe-speech", needs=("audio", "task", "timestamps", "beams", *INSTANCE_ARGUMENTS))
async def transcribe_speech(request: Request, output: Output) -> None:
    """Writes down what is said."""
    async with answering(request, output, request["model"]) as provenance:
        audio = await output.run_with_keepalive(
            0.0, "Reading the audio", lambda _: decode_audio(request["audio"], rate_hz=SPEECH_RATE_HZ), phase="decode"
        )
        loaded = await instance.ready(request, output, provenance, task=Task.TRANSCRIBE)
        asked = Transcription(
            audio.samples, audio.rate_hz, language=request["language"], task=request["task"], beams=request["beams"]
        )
        job = instance.worker.submit(loaded.handle, lambda model, job: model.transcribe(asked, job))
        try:
            await write_transcript(job, asked, output, with_segments=request["timestamps"])
        finally:
            provenance.finish_reason = asked.finish_reason
            provenance.usage.completion_tokens = asked.completion_tokens
            provenance.settings |= {"language": asked.found_language, "audio_s": round(asked.duration_s, 3)}
