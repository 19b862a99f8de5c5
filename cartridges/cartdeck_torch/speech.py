"""Owns the way from a recording to windows of speech, and from a model's marks to segments with times.

It does not know models. A window begins where somebody begins to speak and ends, where that is possible, in a pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cartdeck_modelkit.provenance import FinishReason

WINDOW_S: Final = 30.0
"""What the model hears at a time."""
PAD_S: Final = 0.2
"""Heard before speech and after it, so that no consonant is cut off."""
LONGEST_PAUSE_S: Final = 3.0
"""A longer one ends a window: of sentences with long pauses between them the small models leave some out."""
MARK_S: Final = 0.02
"""One step of the model's time marks."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the recording, in seconds. `is_whole`: it ends in a pause or at the end."""

    start_s: float
    end_s: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the text and when it is spoken, in seconds from the recording's beginning."""

    start_s: float
    end_s: float
    text: str

    def record(self) -> dict[str, Any]:
        return {"start_s": round(self.start_s, 2), "end_s": round(self.end_s, 2), "text": self.text.strip()}


@dataclass(slots=True)
class Transcription:
    """What was asked of one recording, and how far it is. Its counts may be read by another thread."""

    samples: bytes
    rate_hz: int
    language: str | None = None
    task: str = "transcribe"
    beams: int = 1
    done_s: float = 0.0
    found_language: str | None = None
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    spoken: list[tuple[float, float]] = field(default_factory=lambda: [])
    """Where somebody speaks: given, or found before anything else."""

    @property
    def duration_s(self) -> float:
        return len(self.samples) / 4 / self.rate_hz


def next_window(spoken: Sequence[tuple[float, float]], cursor_s: float, duration_s: float) -> Window | None:
    """The window that begins with the first speech at or after `cursor_s`; None where there is no more.

    `spoken` are (start, end) in seconds, in order. A window takes in as many whole stretches of speech as fit; one that
    is longer than a window is cut, and the model's marks say how far it was understood.
    """
    rest = [(max(start, cursor_s), end) for start, end in spoken if end > cursor_s + MARK_S]
    if not rest:
        return None
    start_s = max(rest[0][0] - PAD_S, cursor_s, 0.0)
    limit_s = start_s + WINDOW_S
    ends: list[float] = []
    for start, end in rest:
        if end > limit_s or (ends and start - ends[-1] > LONGEST_PAUSE_S):
            break
        ends.append(end)
    if not ends:
        return Window(start_s, min(limit_s, duration_s), is_whole=limit_s >= duration_s)
    following = [start for start, _ in rest[len(ends) :]]
    room_s = min([limit_s, duration_s, *following[:1]])
    return Window(start_s, max(ends[-1], min(ends[-1] + PAD_S, room_s)), is_whole=True)


def split_marks(tokens: Sequence[int], first_mark: int) -> tuple[list[tuple[float, float | None, list[int]]], bool]:
    """The parts of a window's tokens between its time marks: (start, end, tokens), in seconds of the window.

    A mark is `first_mark` plus its time in steps of 0.02 s. The end of a part that was not closed is None; the answer
    says too whether the last part was closed.
    """
    parts: list[tuple[float, float | None, list[int]]] = []
    start_s, inside = 0.0, list[int]()
    is_closed = True
    for token in tokens:
        if token < first_mark:
            inside.append(token)
            is_closed = False
            continue
        mark_s = (token - first_mark) * MARK_S
        if inside:
            parts.append((start_s, mark_s, inside))
            inside = []
            is_closed = True
        start_s = mark_s
    if inside:
        parts.append((start_s, None, inside))
    return parts, is_closed
