"""Owns what every handler of this cartridge shares: the cartridge, the one model of the process, a call's record.

It does not know the caps; importing it loads no engine.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from cartdeck_gguf.instance import Instance
from cartdeck_gguf.loading import ENGINE_LIBRARY, check_engine
from cartdeck_modelkit.owner import Owner
from cartdeck_modelkit.phases import ObtainedModel, obtain_model
from cartdeck_modelkit.provenance import ModelIdentity, Provenance
from cartdeck_sdk import Cartridge, Request

T = TypeVar("T")

cartridge: Final = Cartridge("cartdeck_gguf")
instance: Final = Instance()


def new_provenance(spec: str) -> Provenance:
    """The record of a call that has just begun."""
    manifest = cartridge.manifest
    return Provenance(
        ModelIdentity(spec),
        cartridge_name=manifest.name,
        cartridge_version=manifest.version,
        engine_library=ENGINE_LIBRARY,
    )


async def obtain(request: Request, provenance: Provenance, *, needs_engine: bool = True) -> ObtainedModel:
    """The files of the request's model; what is known of them goes into `provenance`. Raises the peer's error, and
    before `CARTRIDGE_UNAVAILABLE` where the engine that is to read them is not installed."""
    if needs_engine:
        check_engine()
    obtained = await obtain_model(request, request["model"])
    provenance.timing.obtain_s = obtained.obtain_s
    provenance.model.revision, provenance.model.sha256 = obtained.revision, obtained.sha256
    return obtained


async def run_on(owner: Owner, function: Callable[[], T]) -> T:
    """What `function()` gives or raises, run in its turn on the owner's thread. A caller that is cancelled leaves at
    once; the function goes on to its end, so that what it uses must be freed by the same thread."""
    return await asyncio.shield(asyncio.wrap_future(owner.start(function)))
