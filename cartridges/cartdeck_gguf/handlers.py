"""Owns the caps of this cartridge: what each does with a request.

It does not know llama.cpp; importing it loads no engine.
"""

import asyncio
import json
from asyncio import CancelledError
from typing import Final

from cartdeck_gguf import embedding_handlers, vocabulary_handlers
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.info import describe_model
from cartdeck_gguf.loading import LoadedModel, native_log
from cartdeck_gguf.reporting import GenerationReporter
from cartdeck_gguf.sampling import read_settings
from cartdeck_gguf.serving import cartridge, instance, new_provenance
from cartdeck_gguf.shards import read_model
from cartdeck_modelkit.owner import Job
from cartdeck_modelkit.phases import keeping_alive, obtain_model
from cartdeck_sdk import Output, Request

HANDLERS: Final = (embedding_handlers, vocabulary_handlers)
"""The modules that register the other caps when they are imported."""

INSTANCE_ARGUMENTS: Final = ("model", "context-size", "threads", "gpu-layers")
SAMPLING_ARGUMENTS: Final = ("max-tokens", "temperature", "top-k", "top-p", "min-p", "repeat-penalty")


@cartridge.handles("generate-text", needs=("prompt", *INSTANCE_ARGUMENTS, *SAMPLING_ARGUMENTS))
async def generate_text(request: Request, output: Output) -> None:
    """Continues the prompt; the text leaves as its tokens come."""
    settings = read_settings(request.__getitem__)
    generation = Generation(request["prompt"], settings)
    provenance = new_provenance(request["model"])
    provenance.seed = settings.seed
    try:
        model = await instance.ready(request, output, provenance)
        await make_text(model, generation, output)
    except CancelledError:
        generation.finish_reason = "cancelled"
        raise
    finally:
        provenance.finish_reason = generation.finish_reason
        provenance.usage.prompt_tokens = generation.prompt_tokens
        provenance.usage.completion_tokens = generation.completion_tokens
        provenance.timing.first_token_s = generation.first_token_s
        output.finish(provenance=provenance.record())


async def make_text(model: LoadedModel, generation: Generation, output: Output) -> None:
    """Has the owner's thread make the text in its turn; passes on what comes of it until it is over."""

    def work(job: Job) -> None:
        native_log.begin_section(job.log)
        try:
            generation.run(model, job.say, job.touch)
        finally:
            native_log.begin_section()  # what the engine says from here on is not this request's

    job = Job(work, abort=generation.flag.set)
    reporter = GenerationReporter(output, generation, job)
    instance.owner.submit(job)
    try:
        async with keeping_alive(reporter.repeat):
            reporter.report()
            async for text in job.pieces():
                reporter.report()
                for level, line in job.take_lines():
                    output.log(level, line)
                if text:
                    await output.write(text)
    finally:
        job.cancel()


@cartridge.handles("model-info", needs=("model",))
async def model_info(request: Request, output: Output) -> None:
    """Says what the header of the model's file says; no weights are read."""
    provenance = new_provenance(request["model"])
    obtained = await obtain_model(request, request["model"])
    provenance.timing.obtain_s = obtained.obtain_s
    provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
    headers = await asyncio.to_thread(read_model, obtained.path)
    record = describe_model(headers)
    await output.write(json.dumps(record, ensure_ascii=False, allow_nan=False))
    output.finish(provenance=provenance.record())
