# pyright: basic
# silero-vad has no types.
"""Owns where in a recording somebody speaks: silero-vad, on the CPU.

It does not know what is said.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.nn import functional

RATE_HZ = 16_000
_FRAME = 512
"""Samples that the detector judges at a time."""
_BEFORE = 64
"""Samples that it hears again with each frame: the last of the one before."""
_BLOCK = 512
"""Frames that are computed together, 16 s: a cancel acts between two blocks."""
_MOST_DIFFERENCE = 1e-3


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
    judge = _judge()
    with torch.no_grad():
        found = ask(
            samples,
            detector if judge is None else _Judged(judge.blocks(samples)),
            sampling_rate=RATE_HZ,
            threshold=0.5,
            min_speech_duration_ms=200,
            min_silence_duration_ms=300,
            speech_pad_ms=60,
            progress_tracking_callback=lambda percent: on_progress(percent / 100),
        )
    return [(one["start"] / RATE_HZ, one["end"] / RATE_HZ) for one in found]


class Judge:
    """The detector's own layers, asked for many frames at once: those that look at one frame look at a block of them,
    the one that remembers goes over them in order. It takes a tenth of the time of frame by frame."""

    def __init__(self, detector: Any) -> None:
        self._model = detector._model
        cell = self._model.decoder.rnn
        self._memory = torch.nn.LSTM(cell.weight_ih.shape[1], cell.weight_hh.shape[1]).eval()
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self._memory.load_state_dict({f"{name}_l0": getattr(cell, name) for name in names})

    def blocks(self, samples: torch.Tensor) -> Iterator[torch.Tensor]:
        """How likely each frame of the samples is speech, a block at a time."""
        state = None
        for first in range(0, len(samples), _BLOCK * _FRAME):
            before = min(first, _BEFORE)
            heard = samples[first - before : first + _BLOCK * _FRAME]
            heard = functional.pad(heard, (_BEFORE - before, (before - len(heard)) % _FRAME))
            frames = heard.unfold(0, _BEFORE + _FRAME, _FRAME).contiguous()
            seen = self._model.encoder(self._model.run_extractors(frames))
            known, state = self._memory(seen.transpose(1, 2), state)  # [frames, 1, width]: one recording
            yield self._model.decoder.decoder(known.transpose(1, 2)).flatten()


@cache
def _judge() -> Judge | None:
    """None where the detector that is installed is not built as a `Judge` takes it to be, so that it says otherwise."""
    detector, _ = _detector()
    samples = torch.sin(torch.arange(20 * _FRAME) ** 1.5 / 500) * torch.linspace(0, 1, 20 * _FRAME)
    try:
        judge = Judge(detector)
        with torch.no_grad():
            together = torch.cat(list(judge.blocks(samples)))
            one_by_one = torch.cat([detector(frame, RATE_HZ)[0] for frame in samples.split(_FRAME)])
    except (AttributeError, IndexError, RuntimeError, ValueError):
        return None
    finally:
        detector.reset_states()
    is_same = together.shape == one_by_one.shape and bool((together - one_by_one).abs().max() < _MOST_DIFFERENCE)
    return judge if is_same else None


class _Judged:
    """Stands for the detector where it is asked for one frame after another."""

    def __init__(self, blocks: Iterator[torch.Tensor]) -> None:
        self._odds = (one for block in blocks for one in block)

    def __call__(self, frame: torch.Tensor, rate_hz: int) -> torch.Tensor:
        return next(self._odds)

    def reset_states(self) -> None:
        """They were begun afresh."""
