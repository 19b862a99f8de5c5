"""Owns a small picture to try a model's eyes with: made here, a red disc on a grey ground.

It does not know models. Whether an answer about it is right says little; that there is one says that the eyes work.
"""

import base64
import struct
import zlib
from functools import cache
from typing import Final

SIDE: Final = 96
_GROUND: Final = (130, 130, 120)
_DISC: Final = (220, 30, 30)
_RADIUS: Final = 30.0
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB8: Final = (8, 2, 0, 0, 0)
"""Bits of a channel, three channels, and the one way of compressing, filtering and ordering that is meant here."""


@cache
def sample_picture() -> str:
    """A PNG file of `SIDE` by `SIDE` pixels, as a data URI (W3C, PNG third edition, 2025)."""
    head = struct.pack(">II5B", SIDE, SIDE, *_RGB8)
    rows = b"".join(b"\0" + bytes(channel for x in range(SIDE) for channel in _pixel(x, y)) for y in range(SIDE))
    parts = _chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")
    data = base64.b64encode(_SIGNATURE + b"".join(parts)).decode()
    return f"data:image/png;base64,{data}"


def _pixel(x: int, y: int) -> tuple[int, int, int]:
    middle = (SIDE - 1) / 2
    return _DISC if (x - middle) ** 2 + (y - middle) ** 2 <= _RADIUS**2 else _GROUND


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
