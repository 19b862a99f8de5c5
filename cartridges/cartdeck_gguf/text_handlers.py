"""Owns the cap `generate-text`: what it does with a request.

It does not know how texts are made.
"""

from asyncio import CancelledError
from contextlib import aclosing
from typing import Final

from cartdeck_gguf.generation import Generation, Piece
from cartdeck_gguf.reporting import follow
from cartdeck_gguf.serving import cartridge, instance, new_provenance
from cartdeck_modelkit.sampling import read_settings
from cartdeck_sdk import Output, Request

INSTANCE_ARGUMENTS: Final = ("model", "context-size", "threads", "gpu-layers")
SAMPLING_ARGUMENTS: Final = (
    "max-tokens", "temperature", "top-k", "top-p", "min-p", "repeat-penalty", "frequency-penalty", "presence-penalty",
    "n", "logprobs", "top-logprobs", "deterministic",
)  # fmt: skip


@cartridge.handles("generate-text", needs=("prompt", *INSTANCE_ARGUMENTS, *SAMPLING_ARGUMENTS))
async def generate_text(request: Request, output: Output) -> None:
    """Continues the prompt; the text leaves as its tokens come."""
    generation = Generation(request["prompt"], read_settings(request.__getitem__))
    provenance = new_provenance(request["model"])
    try:
        await instance.ready(request, output, provenance)
        async with aclosing(follow(instance, generation, output, is_plain=True)) as pieces:
            async for piece in pieces:
                await write_piece(piece, generation, output)
    except CancelledError:
        generation.finish_reason = "cancelled"
        raise
    finally:
        generation.describe(provenance)
        output.finish(provenance=provenance.record())


async def write_piece(piece: Piece, generation: Generation, output: Output) -> None:
    """The first text goes to the main output, what else there is to `events`."""
    if piece.index == 0 and piece.text:
        await output.write(piece.text)
    elif piece.text:
        await output.stream("events").item({"type": "text", "index": piece.index, "text": piece.text})
    for record in piece.records:
        await output.stream("events").item(record.as_event(piece.index))
    if piece.finish_reason is not None and generation.settings.texts > 1:
        seed = generation.seeds[piece.index]
        finish = {"type": "finish", "index": piece.index, "finish_reason": piece.finish_reason, "seed": seed}
        await output.stream("events").item(finish)
