"""Owns the caps whose answers are vectors.

It does not know torch.
"""

import json
from typing import Final

from cartdeck_sdk import Output, Request
from cartdeck_torch.embedding import ImageEmbedding, TextEmbedding
from cartdeck_torch.family import Task, check_kind
from cartdeck_torch.intake import Intake
from cartdeck_torch.pooling import OWN, embedding_shape
from cartdeck_torch.serving import INSTANCE_ARGUMENTS, answering, cartridge, instance, obtain_folder

MOST_IMAGE_BYTES: Final = 64 * 1024 * 1024
"""Image files of one call that wait here."""


@cartridge.handles("embed-text", needs=("texts", "normalize", "truncate", *INSTANCE_ARGUMENTS))
async def embed_text(request: Request, output: Output) -> None:
    """One vector for each text, in their order."""
    async with answering(request, output, request["model"]) as provenance:
        loaded = await instance.ready(request, output, provenance, task=Task.EMBED_TEXT)
        call = TextEmbedding(
            instance.worker,
            loaded,
            pooling=request["pooling"],
            normalize=request["normalize"],
            truncate=request["truncate"],
        )
        await call.run(Intake(request.stream("texts")), output, provenance)


@cartridge.handles("embed-image", needs=("images", "normalize", *INSTANCE_ARGUMENTS))
async def embed_image(request: Request, output: Output) -> None:
    """One vector for each image, in their order."""
    async with answering(request, output, request["model"]) as provenance:
        loaded = await instance.ready(request, output, provenance, task=Task.EMBED_IMAGE)
        call = ImageEmbedding(instance.worker, loaded, normalize=request["normalize"])
        await call.run(Intake(request.stream("images"), most_size=MOST_IMAGE_BYTES), output, provenance)


@cartridge.handles("embedding-dimensions", needs=("model",))
async def embedding_dimensions(request: Request, output: Output) -> None:
    """Says how long a model's vectors are, from its folder alone."""
    async with answering(request, output, request["model"]) as provenance:
        folder = await obtain_folder(request, provenance)
        check_kind(folder, Task.EMBED_TEXT)
        shape = embedding_shape(folder)
        pooling = None if shape.pooling == OWN else shape.pooling
        record = {"dimensions": shape.dimensions, "max_tokens": shape.max_tokens, "pooling": pooling}
        await output.write(json.dumps(record))
