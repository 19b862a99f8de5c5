"""Owns the caps that tell of models and devices, and brings the others together.

It does not know torch; importing it loads no engine.
"""

import json
from typing import Any, Final

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Output, Report, Request
from cartdeck_torch import text_handlers, vector_handlers
from cartdeck_torch.architecture import describe_architecture
from cartdeck_torch.info import describe_folder
from cartdeck_torch.instance import ENGINE_LIBRARY
from cartdeck_torch.serving import answering, cartridge, instance, obtain_folder

__all__ = ["HANDLERS", "cartridge", "instance"]

HANDLERS: Final = (text_handlers, vector_handlers)
"""The modules that register the other caps when they are imported."""


@cartridge.handles("model-info", needs=("model",))
async def model_info(request: Request, output: Output) -> None:
    """Says what the headers of the model's files say; no weights are read."""
    async with answering(request, output, request["model"]) as provenance:
        folder = await obtain_folder(request, provenance)
        await output.write(json.dumps(describe_folder(folder), ensure_ascii=False, allow_nan=False))


@cartridge.handles("architecture-info", needs=("architecture",))
async def architecture_info(request: Request, output: Output) -> None:
    """Says what the list of kinds says; the engine is not loaded."""
    record = describe_architecture(request["architecture"])
    await output.write(json.dumps({**record, "engine": {"library": ENGINE_LIBRARY, "version": None}}))


@cartridge.handles("device-info")
async def device_info(request: Request, output: Output) -> None:
    """Says which devices there are."""
    devices = await output.run_with_keepalive(0.0, "Looking for devices", _devices, phase="load")
    await output.write(json.dumps({"devices": devices}, ensure_ascii=False))


def _devices(_: Report) -> list[dict[str, Any]]:
    try:
        from cartdeck_torch.engine.torch_device import describe_devices  # noqa: PLC0415 - heavy: only when asked
    except (ImportError, OSError) as error:
        message = f"torch cannot be loaded ({error}); install it with: pip install 'cartdeck[torch]'"
        raise failure(Code.CARTRIDGE_UNAVAILABLE, message) from error
    return describe_devices()
