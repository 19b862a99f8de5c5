"""Owns the settings of this cartridge: where models are kept, how long it waits, which hub it asks and how.

It does not know what is done with them. They come from its environment, once, before anything is imported that reads
the same variables; the names that huggingface_hub has are its own.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from cartdeck_protocol.errors import Code, failure

MODELS_DIR = "CARTDECK_MODELS_DIR"
LOCK_LIMIT_S = "CARTDECK_MODELS_LOCK_LIMIT_S"
STALL_LIMIT_S = "CARTDECK_MODELS_STALL_LIMIT_S"
QUIET_LIMIT_S = "CARTDECK_MODELS_QUIET_LIMIT_S"
CONNECTIONS = "CARTDECK_MODELS_CONNECTIONS"
DEFAULT_LOCK_LIMIT_S = 120.0
DEFAULT_STALL_LIMIT_S = 300.0
DEFAULT_QUIET_LIMIT_S = 20.0
DEFAULT_CONNECTIONS = 4
MOST_CONNECTIONS = 32

DEFAULT_ENDPOINT = "https://huggingface.co"
ENDPOINT = "HF_ENDPOINT"
_YES = frozenset({"1", "ON", "YES", "TRUE"})


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The hub, and how it is asked.

    `endpoint` is its URL without a `/` at the end. `cache_dir` holds models in the layout of huggingface_hub; None
    means the folder `hub` of our own cache. `quiet_limit_s`: a connection that brings nothing for so long is closed and
    made anew. `connections`: how many ranges of one large file, or how many small files, are fetched at once.
    """

    endpoint: str = DEFAULT_ENDPOINT
    cache_dir: Path | None = None
    is_offline: bool = False
    uses_xet: bool = True
    uses_symlinks: bool = True
    quiet_limit_s: float = DEFAULT_QUIET_LIMIT_S
    connections: int = DEFAULT_CONNECTIONS

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> "HubSettings":
        """Raises BAD_ARGUMENT for a value that cannot be meant."""
        return HubSettings(
            endpoint=_endpoint(environment),
            cache_dir=_hub_cache_dir(environment),
            is_offline=_is_yes(environment, "HF_HUB_OFFLINE") or _is_yes(environment, "TRANSFORMERS_OFFLINE"),
            uses_xet=not _is_yes(environment, "HF_HUB_DISABLE_XET"),
            uses_symlinks=not _is_yes(environment, "HF_HUB_DISABLE_SYMLINKS"),
            quiet_limit_s=_seconds(environment, QUIET_LIMIT_S, DEFAULT_QUIET_LIMIT_S),
            connections=_count(environment, CONNECTIONS, DEFAULT_CONNECTIONS),
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """Where models are kept, two limits in seconds, and the hub.

    `lock_limit_s`: how long another process may hold a model without advancing. `stall_limit_s`: how long a transfer
    may bring nothing at all, also after its own retries, before it is given up.
    """

    models_dir: Path
    lock_limit_s: float = DEFAULT_LOCK_LIMIT_S
    stall_limit_s: float = DEFAULT_STALL_LIMIT_S
    hub: HubSettings = HubSettings()

    @property
    def hub_cache_dir(self) -> Path:
        return self.hub.cache_dir or self.models_dir / "hub"

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> "Settings":
        """The settings in force. Raises BAD_ARGUMENT for a value that cannot be meant."""
        environment = os.environ if environment is None else environment
        folder = environment.get(MODELS_DIR)
        models_dir = Path(folder).expanduser() if folder else platformdirs.user_cache_path("cartdeck") / "models"
        return Settings(
            models_dir.absolute(),
            _seconds(environment, LOCK_LIMIT_S, DEFAULT_LOCK_LIMIT_S),
            _seconds(environment, STALL_LIMIT_S, DEFAULT_STALL_LIMIT_S),
            HubSettings.from_environment(environment),
        )


def _endpoint(environment: Mapping[str, str]) -> str:
    text = environment.get(ENDPOINT) or DEFAULT_ENDPOINT
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise failure(Code.BAD_ARGUMENT, f"The setting {ENDPOINT} is no URL; expected for instance {DEFAULT_ENDPOINT}.")
    return text.rstrip("/")


def _hub_cache_dir(environment: Mapping[str, str]) -> Path | None:
    """The folder that huggingface_hub would use where the user has named one; None where not."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    home = environment.get("HF_HOME")
    if not named and not home:
        return None
    text = named or os.path.join(home or "", "hub")  # noqa: PTH118 - variables in it are expanded first
    return Path(os.path.expandvars(text)).expanduser().absolute()


def _is_yes(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").upper() in _YES


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


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if not text:
        return default
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= MOST_CONNECTIONS:
        raise failure(Code.BAD_ARGUMENT, f"The setting {name} is {text!r}; expected 1 to {MOST_CONNECTIONS}.")
    return value
