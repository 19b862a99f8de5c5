# pyright: basic
# silero-vad has no types.
"""Owns where in a recording somebody speaks: silero-vad, on the CPU.

It does not know what is said.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

RATE_HZ = 16_000


@cache
def _detector() -> tuple[Any, Callable[..., Any]]:
    """The detector and what asks it. Its weights come with the package (2 MB, MIT)."""
    threads = torch.get_num_threads()
    from silero_vad import get_speech_timestamps, load_silero_vad  # noqa: PLC0415 - see below

    torch.set_num_threads(threads)  # its import leaves one thread for all that is computed in this process
    return load_silero_vad(onnx=False), get_speech_timestamps


def find_speech(samples: torch.Tensor, *, on_progress: Callable[[float], None]) -> list[tuple[float, float]]:
    """(start, end) in seconds of each stretch of speech in float32 `samples` at 16 kHz, in order.

    `on_progress(fraction)` may raise to give it up. The first call of a process imports and loads the detector, 0.2 s.
    """
    detector, ask = _detector()
    detector.reset_states()
    with torch.no_grad():
        found = ask(
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
