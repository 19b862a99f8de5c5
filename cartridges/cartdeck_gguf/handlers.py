"""Owns the caps of this cartridge: what each does with a request.

It does not know llama.cpp; importing it loads no engine.
"""

import asyncio
import json
from typing import Final

from cartdeck_gguf import chat_handlers, embedding_handlers, text_handlers, vocabulary_handlers
from cartdeck_gguf.info import describe_model
from cartdeck_gguf.serving import cartridge, new_provenance
from cartdeck_gguf.shards import read_model
from cartdeck_modelkit.phases import obtain_model
from cartdeck_sdk import Output, Request

HANDLERS: Final = (chat_handlers, embedding_handlers, text_handlers, vocabulary_handlers)
"""The modules that register the other caps when they are imported."""


@cartridge.handles("model-info", needs=("model", "context-size"))
async def model_info(request: Request, output: Output) -> None:
    """Says what the header of the model's file says; no weights are read."""
    provenance = new_provenance(request["model"])
    obtained = await obtain_model(request, request["model"])
    provenance.timing.obtain_s = obtained.obtain_s
    provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
    headers = await asyncio.to_thread(read_model, obtained.path)
    record = await asyncio.to_thread(describe_model, headers, context_size=request["context-size"])
    await output.write(json.dumps(record, ensure_ascii=False, allow_nan=False))
    output.finish(provenance=provenance.record())
