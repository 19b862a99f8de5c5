"""Owns the cartridge's one instance, and what surrounds every call: its provenance, and the way out of a lost device.

It does not know caps.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from cartdeck_modelkit.phases import obtain_model
from cartdeck_modelkit.provenance import ModelIdentity, Provenance
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_sdk import Cartridge, Output, Request
from cartdeck_torch.folder import ModelFolder, check_spec, read_folder
from cartdeck_torch.instance import ENGINE_LIBRARY, Instance

cartridge = Cartridge("cartdeck_torch")
instance = Instance()

INSTANCE_ARGUMENTS: Final = ("model", "threads", "gpu-layers", "device", "dtype")
EXIT_DEVICE_LOST: Final = 75
"""As `EX_TEMPFAIL` of sysexits.h: a new process may well succeed."""

_open_calls: set[int] = set()


@asynccontextmanager
async def answering(request: Request, output: Output, spec: str) -> AsyncGenerator[Provenance]:
    """A call with a model: its provenance leaves with whatever ends it.

    When the device is lost, every open call is answered `DEVICE_FAULT`, and with the last of them that fails or is
    given up the process leaves, so that the host starts a new one.
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
        if instance.fault is not None and not _open_calls:
            raise SystemExit(EXIT_DEVICE_LOST) from error
        raise
    except asyncio.CancelledError:
        provenance.finish_reason = "cancelled"
        _open_calls.discard(request.id)
        if instance.fault is not None and not _open_calls:
            why, details = request.cancel_reason or "given up by the caller", {"provenance": provenance.record()}
            raise SystemExit(EXIT_DEVICE_LOST) from failure(Code.CANCELLED, why, details=details)
        raise
    finally:
        _open_calls.discard(request.id)
        output.finish(provenance=provenance.record())


async def obtain_folder(request: Request, provenance: Provenance) -> ModelFolder:
    """The folder of the model that the request names, its headers read and its weights not."""
    check_spec(request["model"])
    obtained = await obtain_model(request, request["model"])
    provenance.timing.obtain_s = obtained.obtain_s
    provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
    return await asyncio.to_thread(read_folder, obtained.path)
