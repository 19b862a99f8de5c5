"""Owns where a cartridge's manifest.json lies. It does not know what is in it, so that printing it is quick."""

import importlib.util
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import Code, failure

MANIFEST_NAME: Final = "manifest.json"


def package_folder(package: str) -> Path:
    """The folder of an importable top-level package, found without importing it. CARTRIDGE_UNAVAILABLE if none."""
    spec = importlib.util.find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    if not locations:
        raise failure(Code.CARTRIDGE_UNAVAILABLE, f"no package {package} is installed in this Python")
    return Path(next(iter(locations)))


def read_manifest(package: str) -> bytes:
    """The bytes of `manifest.json` beside the package. CARTRIDGE_UNAVAILABLE says how to generate it."""
    path = package_folder(package) / MANIFEST_NAME
    try:
        return path.read_bytes()
    except OSError as error:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"{path} cannot be read ({error.strerror}); generate it with: python -m cartdeck_sdk.manifest {package}",
        ) from error
