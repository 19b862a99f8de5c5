"""Owns the settings of this cartridge: where models are kept, and how long it waits. They come from its environment.

It does not know what is done with them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from cartdeck_protocol.errors import Code, failure

MODELS_DIR = "CARTDECK_MODELS_DIR"
LOCK_LIMIT_S = "CARTDECK_MODELS_LOCK_LIMIT_S"
STALL_LIMIT_S = "CARTDECK_MODELS_STALL_LIMIT_S"
DEFAULT_LOCK_LIMIT_S = 120.0
DEFAULT_STALL_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Where models are kept, and two limits in seconds.

    `lock_limit_s`: how long another process may hold a model without advancing. `stall_limit_s`: how long pip may say
    nothing at all; pip's own timeouts and retries come first.
    """

    models_dir: Path
    lock_limit_s: float = DEFAULT_LOCK_LIMIT_S
    stall_limit_s: float = DEFAULT_STALL_LIMIT_S

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> "Settings":
        """The settings in force. Raises BAD_ARGUMENT for a value that is not a positive number of seconds."""
        environment = os.environ if environment is None else environment
        folder = environment.get(MODELS_DIR)
        models_dir = Path(folder).expanduser() if folder else platformdirs.user_cache_path("cartdeck") / "models"
        return Settings(
            models_dir.absolute(),
            _seconds(environment, LOCK_LIMIT_S, DEFAULT_LOCK_LIMIT_S),
            _seconds(environment, STALL_LIMIT_S, DEFAULT_STALL_LIMIT_S),
        )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise failure(Code.BAD_ARGUMENT, f"The setting {name} is {text!r}; expected a positive number of seconds.")
    return value
