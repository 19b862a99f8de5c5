"""Owns what one segment of a transcript is called: by the cap `transcribe-speech`, and in OpenAI's `verbose_json`.

It does not know how a segment was heard. What nobody told of it is left out, never made up.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

_FRAMES_PER_S: Final = 100
"""`seek` counts the steps of Whisper's spectrogram, of which 100 are a second."""
_SAME: Final = ("temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
"""Numbers that have one name on both sides."""


def as_openai(number: int, segment: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the cap as OpenAI's, counted from 0. `seek` is where the window that was heard begins, and the
    segment itself where nothing says so."""
    start_s = float(segment["start_s"])
    seek_s = segment.get("window_start_s")
    told: dict[str, Any] = {
        "id": number,
        "seek": round((start_s if seek_s is None else float(seek_s)) * _FRAMES_PER_S),
        "start": start_s,
        "end": float(segment["end_s"]),
        "text": segment["text"],
    }
    if segment.get("tokens") is not None:
        told["tokens"] = segment["tokens"]
    return told | _numbers(segment)


def from_openai(segment: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's record, as another server gave it, as one of the cap. Raises KeyError, TypeError or ValueError for what
    is none."""
    told: dict[str, Any] = {
        "start_s": _finite(segment["start"]),
        "end_s": _finite(segment["end"]),
        "text": str(segment["text"]),
    }
    if segment.get("seek") is not None:
        told["window_start_s"] = _finite(segment["seek"]) / _FRAMES_PER_S
    if segment.get("tokens") is not None:
        told["tokens"] = [int(one) for one in segment["tokens"]]
    return told | {name: _finite(value) for name, value in _numbers(segment).items()}


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a segment has the number {number}")
    return number


def _numbers(segment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: segment[name] for name in _SAME if segment.get(name) is not None}
