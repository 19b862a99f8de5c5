"""Owns the caps whose answers are texts: continued, answered, described, written down.

It does not know torch.
"""

import asyncio
from typing import Any, Final

from cartdeck_modelkit.audio import decode_audio
from cartdeck_modelkit.image import decode_image
from cartdeck_modelkit.refusal import refuse_given
from cartdeck_modelkit.sampling import read_settings
from cartdeck_sdk import Output, Request
from cartdeck_torch.describing import Description, pass_on
from cartdeck_torch.dialogue import read_messages
from cartdeck_torch.family import Task
from cartdeck_torch.generation import Dialogue, Generation
from cartdeck_torch.serving import INSTANCE_ARGUMENTS, answering, cartridge, instance
from cartdeck_torch.speech import Transcription
from cartdeck_torch.transcript import write_transcript

SPEECH_RATE_HZ: Final = 16_000
SAMPLING: Final = ("max-tokens", "temperature", "top-k", "top-p", "min-p", "repeat-penalty")
NOT_FOR_TEXT: Final = ("grammar", "n", "logprobs", "top-logprobs", "lora", "projector", "tools", "tool-choice")
NOT_FOR_CAPTIONS: Final = (
    *NOT_FOR_TEXT, "system", "chat-template", "temperature", "top-k", "top-p", "min-p", "repeat-penalty",
    "frequency-penalty", "presence-penalty", "logit-bias", "json-schema", "stop",
)  # fmt: skip


@cartridge.handles("generate-text", needs=("prompt", *INSTANCE_ARGUMENTS, *SAMPLING))
async def generate_text(request: Request, output: Output) -> None:
    """Continues the prompt; the text leaves as its tokens come."""
    await _make_text(request, output, prompt=request["prompt"])


@cartridge.handles("chat", needs=("messages", *INSTANCE_ARGUMENTS, *SAMPLING))
async def chat(request: Request, output: Output) -> None:
    """Answers a dialogue, by the model's own template."""
    messages = read_messages(request["messages"], system=request["system"])
    await _make_text(request, output, dialogue=Dialogue(messages, template=request["chat-template"]))


async def _make_text(
    request: Request, output: Output, *, prompt: str | None = None, dialogue: Dialogue | None = None
) -> None:
    refuse_given(request, *NOT_FOR_TEXT)
    settings = read_settings(request.__getitem__)
    async with answering(request, output, request["model"]) as provenance:
        provenance.seed = settings.seed
        loaded = await instance.ready(request, output, provenance, task=Task.GENERATE)
        generation = Generation(prompt, settings.max_tokens, settings=settings, dialogue=dialogue)

        def work(model: Any, job: Any) -> None:
            model.generate(generation, job)

        job = instance.worker.submit(loaded.handle, work)
        try:
            await pass_on(job, generation, output, "Generating")
        finally:
            generation.note(provenance)
            provenance.timing.first_token_s = generation.first_token_s


@cartridge.handles("describe-image", needs=("image", "max-tokens", *INSTANCE_ARGUMENTS))
async def describe_image(request: Request, output: Output) -> None:
    """Says what an image shows."""
    refuse_given(request, *NOT_FOR_CAPTIONS)
    async with answering(request, output, request["model"]) as provenance:
        image = await asyncio.to_thread(decode_image, request["image"])
        loaded = await instance.ready(request, output, provenance, task=Task.DESCRIBE)
        # the default is a question, which a captioning model takes for the beginning of its text
        prompt = request["prompt"] if request.is_given("prompt") else None
        description = Description(prompt, request["max-tokens"])
        job = instance.worker.submit(loaded.handle, lambda model, job: model.describe(image, description, job))
        try:
            await pass_on(job, description, output, "Describing")
        finally:
            description.note(provenance)


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
