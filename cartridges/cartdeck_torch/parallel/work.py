"""Owns what the leader tells a rank: which part of which model, by which group, on what.

It does not know how either works.
"""

import base64
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cartdeck_torch.settings import LoadSettings

PREPARE: Final = "cap:import-engine"
START: Final = "cap:start-rank"
LOAD: Final = "cap:load-share"
COMPUTE: Final = "cap:compute-text"
TIMEOUT_VARIABLE: Final = "CARTDECK_GROUP_TIMEOUT_S"
LONGEST_TIMEOUT_S: Final = 60.0
"""How long one rank waits for the others at a step, and the default; the variable may make it shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """`rank` of `ranks`; `store` is the file at which they meet. `threads` are this rank's own."""

    path: str
    store: str
    rank: int
    ranks: int
    threads: int
    device: str
    dtype: str
    kv_cache: str
    timeout_s: float

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "RankWork":
        record: dict[str, Any] = json.loads(data)
        return cls(**record)

    @property
    def settings(self) -> LoadSettings:
        return LoadSettings(threads=self.threads, device=self.device, dtype=self.dtype, kv_cache=self.kv_cache)

    @property
    def folder(self) -> Path:
        return Path(self.path)


@dataclass(frozen=True, slots=True)
class SeenText:
    """A text with a mark for each of `images`, whose files' bytes they are: each rank reads them for itself."""

    text: str
    images: list[bytes]

    def to_bytes(self) -> bytes:
        return json.dumps([self.text, [base64.b64encode(one).decode() for one in self.images]]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SeenText":
        text, images = json.loads(data)
        return cls(text, [base64.b64decode(one) for one in images])


def group_timeout_s(environment: Mapping[str, str] = os.environ) -> float:
    """What the variable says, as far as it is a positive number of at most the longest."""
    try:
        value = float(environment.get(TIMEOUT_VARIABLE, LONGEST_TIMEOUT_S))
    except ValueError:
        return LONGEST_TIMEOUT_S
    return min(value, LONGEST_TIMEOUT_S) if value > 0 and math.isfinite(value) else LONGEST_TIMEOUT_S
