"""Owns a short recording that sounds like a voice, to try a model of speech with: made here, of nobody.

It does not know models. What is heard in it says nothing; that it is taken for speech, and written down, does.
"""

import io
import math
import struct
import wave
from functools import cache
from typing import Final

RATE: Final = 16_000
SECONDS: Final = 2.0
_PITCH_HZ: Final = 120.0
_VOWELS: Final = (
    ((730.0, 90.0), (1090.0, 110.0), (2440.0, 170.0)),
    ((270.0, 60.0), (2290.0, 100.0), (3010.0, 200.0)),
    ((570.0, 80.0), (840.0, 100.0), (2410.0, 170.0)),
    ((530.0, 70.0), (1840.0, 100.0), (2480.0, 170.0)),
)
"""Formants of vowels of American English, in hertz, with their widths (Peterson and Barney 1952)."""
_SYLLABLE_S: Final = 0.25


@cache
def sample_voice() -> bytes:
    """A WAV file of vowels in turn, mono, 16 bit: pulses of a pitch through resonators (Klatt 1980)."""
    samples: list[float] = []
    count = int(SECONDS / _SYLLABLE_S)
    for number in range(count):
        samples += _syllable(_VOWELS[number % len(_VOWELS)], pitch_hz=_PITCH_HZ * (1.1 - 0.2 * number / count))
    loudest = max(abs(sample) for sample in samples)
    data = struct.pack(f"<{len(samples)}h", *(int(20_000 * sample / loudest) for sample in samples))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(data)
    return file.getvalue()


def _syllable(formants: tuple[tuple[float, float], ...], *, pitch_hz: float) -> list[float]:
    length = int(RATE * _SYLLABLE_S)
    sound = _pulses(length, pitch_hz)
    for hertz, width_hz in formants:
        sound = _resonated(sound, hertz, width_hz)
    # It swells and fades, as syllables do.
    return [sample * math.sin(math.pi * place / length) ** 0.7 for place, sample in enumerate(sound)]


def _pulses(length: int, pitch_hz: float) -> list[float]:
    period = int(RATE / pitch_hz)
    return [1.0 if place % period == 0 else 0.0 for place in range(length)]


def _resonated(sound: list[float], hertz: float, width_hz: float) -> list[float]:
    """One second-order resonator."""
    radius = math.exp(-math.pi * width_hz / RATE)
    back, further = 2.0 * radius * math.cos(2.0 * math.pi * hertz / RATE), -(radius**2)
    before, earlier = 0.0, 0.0
    out: list[float] = []
    for sample in sound:
        now = (1.0 - back - further) * sample + back * before + further * earlier
        before, earlier = now, before
        out.append(now)
    return out
