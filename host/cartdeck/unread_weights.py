"""Owns what is told of weights in safetensors files where the cartridge that reads them lacks its libraries.

It does not know who asked for the model. A cartridge that reads other files was asked instead, since it is the only one
that can run, and can merely say that it found none of its own.
"""

from pathlib import Path
from typing import Final

from cartdeck.router import Router, parse_cap
from cartdeck_protocol.errors import CartdeckError, Code, failure

_READER: Final = "torch"


def with_reader(error: CartdeckError, router: Router, alias: str) -> CartdeckError:
    """The error of a call of `cap:ALIAS`. Where it is BAD_MODEL_FILE for a folder of safetensors files, and the
    cartridge that reads those is there without its libraries, CARTRIDGE_UNAVAILABLE with what brings them."""
    path = error.details.get("path")
    if error.code is not Code.BAD_MODEL_FILE or not isinstance(path, str) or not _is_folder_of_weights(Path(path)):
        return error
    try:
        router.route(parse_cap(f"cap:{alias};{_READER}"), {})
    except CartdeckError as lacking:
        if lacking.code is Code.CARTRIDGE_UNAVAILABLE:
            message = f"The model is in safetensors files. {lacking.message} A GGUF model needs none of that."
            return failure(Code.CARTRIDGE_UNAVAILABLE, message, argument="model", details=lacking.details)
    return error


def _is_folder_of_weights(path: Path) -> bool:
    try:
        return any(one.suffix.lower() == ".safetensors" for one in path.iterdir())
    except OSError:
        return False
