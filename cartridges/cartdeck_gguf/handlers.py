"""Owns the caps of this cartridge: what each does with a request.

It does not know llama.cpp; importing it loads no engine.
"""

import asyncio
import json
from typing import Final

from cartdeck_gguf import architecture, chat_handlers, embedding_handlers, text_handlers, vocabulary_handlers
from cartdeck_gguf.info import describe_model
from cartdeck_gguf.loading import ENGINE_LIBRARY
from cartdeck_gguf.serving import cartridge, new_provenance
from cartdeck_gguf.shards import read_model
from cartdeck_gguf.vocabulary_handlers import owner
from cartdeck_modelkit.phases import obtain_model
from cartdeck_modelkit.refusal import blaming
from cartdeck_sdk import Output, Request

HANDLERS: Final = (chat_handlers, embedding_handlers, text_handlers, vocabulary_handlers)
"""The modules that register the other caps when they are imported."""


@cartridge.handles("architecture-info", needs=("architecture",))
async def architecture_info(request: Request, output: Output) -> None:
    """Says what the engine says when it is asked."""
    name = request["architecture"]
    message = f"Asking {ENGINE_LIBRARY} for {name[: architecture.LONGEST_NAME]}"
    known = await output.run_with_keepalive(
        0.0, message, lambda _: owner.call(lambda: architecture.is_known(name)), phase="load"
    )
    device_bytes = await asyncio.to_thread(owner.call, architecture.device_memory_bytes)
    version = architecture.engine_version()
    engine = {"library": ENGINE_LIBRARY, "version": version, "device_memory_bytes": device_bytes}
    record = {"architecture": name, "is_known": known, "made_for": None, "engine": engine}
    await output.write(json.dumps(record, ensure_ascii=False))


@cartridge.handles("model-info", needs=("model", "context-size"))
async def model_info(request: Request, output: Output) -> None:
    """Says what the header of the model's file says; no weights are read."""
    provenance = new_provenance(request["model"])
    obtained = await obtain_model(request, request["model"])
    provenance.timing.obtain_s = obtained.obtain_s
    provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
    with blaming("model"):
        headers = await asyncio.to_thread(read_model, obtained.path)
    record = await asyncio.to_thread(describe_model, headers, context_size=request["context-size"])
    await output.write(json.dumps(record, ensure_ascii=False, allow_nan=False))
    output.finish(provenance=provenance.record())
