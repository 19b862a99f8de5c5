"""Owns the record of what made an answer: built in one place, so that every model cartridge says it alike.

It does not know models or engines; they fill it in. The END of every model call carries it, and an ERR what is known.
"""

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(slots=True)
class ModelIdentity:
    """Which weights: the spec as asked for, and what the models cartridge recorded of the file.

    `sha256` is None for a local file that was never hashed, `revision` None where the source has none.
    """

    spec: str
    revision: str | None = None
    sha256: str | None = None


@dataclass(slots=True)
class Usage:
    """How many tokens went in and came out; `cached_tokens` of the prompt's were not computed again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Timing:
    """Seconds that this call itself took; a phase that it skipped took none. `first_token_s` counts from the start of
    inference and is None when no token came."""

    obtain_s: float = 0.0
    load_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


@dataclass(slots=True)
class Provenance:
    """What is known of a call so far. `record()` may be asked at any time, `total_s` being the time until then."""

    model: ModelIdentity
    cartridge_name: str
    cartridge_version: str
    engine_library: str
    engine_version: str | None = None
    device: str | None = None
    dtype: str | None = None
    seed: int | None = None
    batched: bool = False
    finish_reason: FinishReason | None = None
    truncated: bool = False
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    settings: dict[str, Any] = field(default_factory=lambda: {})
    """What the engine was set to where the caller left it open: threads, context size."""
    started: float = field(default_factory=time.monotonic)

    def record(self) -> dict[str, Any]:
        """The record as it travels: text, numbers, booleans and None alone."""
        timing = asdict(self.timing) | {"total_s": time.monotonic() - self.started}
        return {
            "model": asdict(self.model),
            "cartridge": {"name": self.cartridge_name, "version": self.cartridge_version},
            "engine": {"library": self.engine_library, "version": self.engine_version},
            "device": self.device,
            "dtype": self.dtype,
            "seed": self.seed,
            "batched": self.batched,
            "finish_reason": self.finish_reason,
            "usage": asdict(self.usage),
            "truncated": self.truncated,
            "timing": {name: None if value is None else round(value, 6) for name, value in timing.items()},
            "settings": dict(self.settings),
        }
