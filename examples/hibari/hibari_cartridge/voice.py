"""Owns the library: the one module that imports it. It does not know calls."""
# pyright: basic
# The library has no types.

import importlib.metadata
import io
import re
import wave
from collections.abc import Callable

DISTRIBUTION = "hibari-tts"
RATE_HZ = 24_000
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")


class Voice:
    """The voice that the package brings along, in memory."""

    def __init__(self) -> None:
        from hibari import Hibari  # noqa: PLC0415  # the heavy library

        self._speak = Hibari(threads=1)
        self.version = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"

    def say(self, text: str, *, speed: float, seed: int, on_sentence: Callable[[int, int], None]) -> bytes:
        """`text` as a WAV file. `on_sentence(done, total)` is called behind each sentence, and may raise."""
        import numpy as np  # noqa: PLC0415  # the heavy library

        sentences = [part for part in _SENTENCE.split(text) if part.strip()]
        pieces = []
        for number, sentence in enumerate(sentences, start=1):
            pieces.append(self._speak(sentence, speed=speed, seed=seed))
            on_sentence(number, len(sentences))
        samples = np.clip(np.concatenate(pieces), -1.0, 1.0)
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE_HZ)
            out.writeframes((samples * 32767).astype("<i2").tobytes())
        return file.getvalue()
