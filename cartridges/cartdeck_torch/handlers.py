"""Owns the caps of this cartridge: what each does with a request.

It does not know torch; importing it loads no engine.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from cartdeck_modelkit.image import decode_image
from cartdeck_modelkit.phases import obtain_model
from cartdeck_modelkit.provenance import ModelIdentity, Provenance
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_sdk import Cartridge, Output, Request
from cartdeck_torch.describing import Description, pass_on
from cartdeck_torch.embedding import ImageEmbedding, TextEmbedding
from cartdeck_torch.family import Task, check_kind
from cartdeck_torch.folder import read_folder
from cartdeck_torch.instance import ENGINE_LIBRARY, Instance
from cartdeck_torch.intake import Intake
from cartdeck_torch.pooling import OWN, embedding_shape

cartridge = Cartridge("cartdeck_torch")
instance = Instance()

INSTANCE_ARGUMENTS: Final = ("model", "threads", "gpu-layers")
MOST_IMAGE_BYTES: Final = 64 * 1024 * 1024
"""Image files of one call that wait here."""

EXIT_DEVICE_LOST: Final = 75
"""As `EX_TEMPFAIL` of sysexits.h: a new process may well succeed."""

_open_calls: set[int] = set()


@asynccontextmanager
async def answering(request: Request, output: Output, spec: str) -> AsyncGenerator[Provenance]:
    """A call with a model: its provenance leaves with whatever ends it.

    When the device is lost, every open call is answered `DEVICE_FAULT`, and with the last of them the process leaves,
    so that the host starts a new one.
    """
    manifest = cartridge.manifest
    provenance = Provenance(
        ModelIdentity(spec),
        cartridge_name=manifest.name,
        cartridge_version=manifest.version,
        engine_library=ENGINE_LIBRARY,
    )
    _open_calls.add(request.id)
    try:
        yield provenance
    except CartdeckError as error:
        _open_calls.discard(request.id)
        if error.code is Code.DEVICE_FAULT and instance.fault is not None and not _open_calls:
            raise SystemExit(EXIT_DEVICE_LOST) from error
        raise
    except asyncio.CancelledError:
        provenance.finish_reason = "cancelled"
        raise
    finally:
        _open_calls.discard(request.id)
        output.finish(provenance=provenance.record())


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


@cartridge.handles("describe-image", needs=("image", "max-tokens", *INSTANCE_ARGUMENTS))
async def describe_image(request: Request, output: Output) -> None:
    """Says what an image shows."""
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


@cartridge.handles("embedding-dimensions", needs=("model",))
async def embedding_dimensions(request: Request, output: Output) -> None:
    """Says how long a model's vectors are, from its folder alone."""
    async with answering(request, output, request["model"]) as provenance:
        obtained = await obtain_model(request, request["model"])
        provenance.timing.obtain_s = obtained.obtain_s
        provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
        folder = await asyncio.to_thread(read_folder, obtained.path)
        check_kind(folder, Task.EMBED_TEXT)
        shape = embedding_shape(folder)
        record = {
            "dimensions": shape.dimensions,
            "max_tokens": shape.max_tokens,
            "pooling": None if shape.pooling == OWN else shape.pooling,
        }
        await output.write(json.dumps(record))
