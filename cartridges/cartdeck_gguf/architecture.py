"""Owns the question whether the engine knows an architecture. It does not know models: none is needed to ask.

llama.cpp lists its architectures nowhere. It is given a file that names one and holds nothing else: what it says of a
name that it does not know is another error than what it says of a model that is empty.
"""

import struct
import tempfile
from pathlib import Path
from typing import Final

from cartdeck_gguf.loading import import_engine, native_log
from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_NAME: Final = 200
_STRING: Final = 8
_VERSION: Final = 3
_NO_MODEL: Final = "clip"
"""Of projectors: the engine knows it, and takes no model of it."""


def is_known(architecture: str) -> bool:
    """Whether the engine knows the architecture. Imports the engine, a quarter of a second; not on the event loop.

    Raises `BAD_ARGUMENT` for what is no name, `CARTRIDGE_UNAVAILABLE` without the engine.
    """
    if not architecture or len(architecture) > LONGEST_NAME or not architecture.isprintable():
        message = f"{architecture[:60]!r} is no architecture; expected a name such as llama"
        raise failure(Code.BAD_ARGUMENT, message, argument="architecture")
    engine = import_engine()
    with tempfile.TemporaryDirectory(prefix="architecture-") as folder:
        path = Path(folder) / "empty.gguf"
        path.write_bytes(_empty_model(architecture))
        native_log.begin_section()
        try:
            engine.Model(path, log=native_log, has_weights=False).close()
        except CartdeckError as error:
            return error.code is not Code.UNSUPPORTED_ARCHITECTURE and architecture != _NO_MODEL
    return True


def engine_version() -> str:
    """The engine's version. Raises `CARTRIDGE_UNAVAILABLE` without it."""
    return import_engine().VERSION


def device_memory_bytes() -> int | None:
    """What the GPUs that the engine can use have free; None without one. Raises `CARTRIDGE_UNAVAILABLE`."""
    return import_engine().device_memory_bytes()


def _empty_model(architecture: str) -> bytes:
    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    tensors, pairs = 0, 1
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, tensors, pairs)
    return head + text("general.architecture") + struct.pack("<I", _STRING) + text(architecture)
