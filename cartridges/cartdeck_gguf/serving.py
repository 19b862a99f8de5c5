"""Owns what every handler of this cartridge shares: the cartridge, the one model of the process, a call's record.

It does not know the caps; importing it loads no engine.
"""

from typing import Final

from cartdeck_gguf.instance import Instance
from cartdeck_gguf.loading import ENGINE_LIBRARY
from cartdeck_modelkit.provenance import ModelIdentity, Provenance
from cartdeck_sdk import Cartridge

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
