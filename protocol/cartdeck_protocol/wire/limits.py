"""Owns the limits of a connection: defaults, bounds, and what two ends agree on.

It does not know frames; the connection checks them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from cartdeck_protocol.wire.kinds import Kind

KIB: Final = 1024
MIB: Final = 1024 * KIB

HIGHEST_CHUNK: Final = 8 * MIB
HIGHEST_CREDIT: Final = 65_536
MAX_DEPTH: Final = 16
MAX_HELLO: Final = MIB
MAX_CONTROL: Final = 64 * KIB
CHUNK_HEADROOM: Final = KIB
MAX_STREAM_TEXT: Final = 960
"""Bytes of name and media together: with the other fields of a STREAM_START they fit beside the largest payload."""
MAX_CONTROL_BACKLOG: Final = 4 * MIB
"""Bytes of control frames that may wait for a peer that does not read; past it the connection is finished."""


@dataclass(slots=True, frozen=True)
class Limits:
    """What one end accepts. Sizes in bytes.

    `max_chunk` is agreed on as the smaller of both. `initial_credit` is how many CHUNKs of one stream the
    end that states it accepts before it has granted more.
    """

    max_chunk: int = 256 * KIB
    initial_credit: int = 16
    max_item: int = 64 * MIB
    inline_arguments: int = 4 * KIB
    open_requests: int = 4096
    streams_per_request: int = 64

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")

    def to_wire(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> "Limits":
        """The limits that the other end's HELLO states; ValueError names the one that is out of bounds."""
        known = {name: fields[name] for name, _, _ in _BOUNDS if name in fields}
        return cls(**known)

    def frame_bytes(self, kind: int) -> int:
        """The most bytes that the body of a frame of this kind may have."""
        if kind in (Kind.CHUNK, Kind.STREAM_START):
            return self.max_chunk + CHUNK_HEADROOM
        return MAX_HELLO if kind == Kind.HELLO else MAX_CONTROL


_BOUNDS: Final = (
    ("max_chunk", KIB, HIGHEST_CHUNK),
    ("initial_credit", 1, HIGHEST_CREDIT),
    ("max_item", KIB, 1024 * MIB),
    ("inline_arguments", 0, 48 * KIB),
    ("open_requests", 1, 65_536),
    ("streams_per_request", 1, 1024),
)
