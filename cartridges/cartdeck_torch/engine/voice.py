# pyright: basic
# silero-vad has no types.
"""Owns where in a recording somebody speaks: silero-vad, on the CPU.

It does not know what is said.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from silero_vad import get_speech_timestamps, load_silero_vad

RATE_HZ = 16_000


@cache
def _detector() -> Any:
    """Its weights come with the package (2 MB, MIT)."""
    return load_silero_vad(onnx=False)


def find_speech(samples: torch.Tensor, *, on_progress: Callable[[float], None]) -> list[tuple[float, float]]:
    """(start, end) in seconds of each stretch of speech in float32 `samples` at 16 kHz, in order.

    `on_progress(fraction)` may raise to give it up. The first call of a process loads the detector, 0.2 s.
    """
    detector = _detector()
    detector.reset_states()
    with torch.no_grad():
        found = get_speech_timestamps(
            samples,
            detector,
            sampling_rate=RATE_HZ,
            threshold=0.5,
            min_speech_duration_ms=200,
            min_silence_duration_ms=300,
            speech_pad_ms=60,
            progress_tracking_callback=lambda percent: on_progress(percent / 100),
        )
    return [(one["start"] / RATE_HZ, one["end"] / RATE_HZ) for one in found]
