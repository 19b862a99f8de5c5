"""Owns how long a recording says it is, by the headers of the formats that say so (WAV: RIFF; FLAC: RFC 9639).

It does not know sounds: what it cannot read is left to the cartridge, and then the transcript's own times tell.
"""

import struct
from typing import Final

HEAD_BYTES: Final = 64 * 1024
"""So much of a file's beginning is enough to look at."""


def told_duration_s(head: bytes, size_bytes: int) -> float | None:
    """Seconds that the file lasts by its header; None where the header does not say."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return _of_wav(head, size_bytes)
    if head[:4] == b"fLaC":
        return _of_flac(head)
    return None


def _of_wav(head: bytes, size_bytes: int) -> float | None:
    """From the chunks `fmt ` and `data`; a data size that is not told is the rest of the file."""
    place, rate = 12, 0
    while place + 8 <= len(head):
        name, size = head[place : place + 4], struct.unpack_from("<I", head, place + 4)[0]
        if name == b"fmt " and place + 20 <= len(head):
            rate = struct.unpack_from("<I", head, place + 16)[0]
        elif name == b"data":
            return min(size, size_bytes - place - 8) / rate if rate else None
        place += 8 + size + size % 2
    return None


def _of_flac(head: bytes) -> float | None:
    """From STREAMINFO, which comes first: 20 bits of rate, 3 of channels, 5 of depth, 36 of samples."""
    if len(head) < 26 or head[4] & 0x7F:
        return None
    word = int.from_bytes(head[18:26], "big")
    rate, samples = word >> 44, word & (2**36 - 1)
    return samples / rate if rate and samples else None
