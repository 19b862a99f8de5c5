"""Owns the way from a recording to windows of speech, and from a model's marks to segments with times.

It does not know models. A window begins where somebody begins to speak and ends, where that is possible, in a pause.
"""

import zlib
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
class Part:
    """What is said between two time marks, in seconds of the window; `end_s` is None where it was not closed.

    `words` are its tokens without marks. With them they are those from `first` to before `last` of the window's.
    """

    start_s: float
    end_s: float | None
    words: list[int]
    first: int
    last: int


@dataclass(slots=True)
class Reading:
    """What a model makes of a window: the tokens behind its `prompt`, marks among them, and how likely each was."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=lambda: [])
    logprobs: list[float] = field(default_factory=lambda: [])
    """Of each token, as a natural logarithm, among those that the rules of the marks allowed at its place."""
    no_speech_prob: float | None = None
    """How likely the model takes it that nobody speaks, before its first token; None for one that cannot say so."""

    def tokens_of(self, part: Part) -> list[int]:
        """The part's tokens with its marks."""
        return self.tokens[part.first : part.last]

    def average(self, part: Part) -> float:
        """The mean of its tokens' logarithms."""
        return sum(self.logprobs[part.first : part.last]) / (part.last - part.first)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the text and when it is spoken, in seconds from the recording's beginning.

    With what the model told of it: its `tokens`, marks among them, and the mean of their likelihoods' logarithms; of
    the window that it was heard in, where that begins and how likely it was that nobody speaks there.
    """

    start_s: float
    end_s: float
    text: str
    window_start_s: float = 0.0
    tokens: list[int] = field(default_factory=lambda: [])
    avg_logprob: float | None = None
    no_speech_prob: float | None = None

    @property
    def compression_ratio(self) -> float:
        """The text's bytes to those that zlib makes of them: high where it says the same again and again."""
        data = self.text.strip().encode()
        return len(data) / len(zlib.compress(data))

    def record(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "start_s": round(self.start_s, 2),
            "end_s": round(self.end_s, 2),
            "text": self.text.strip(),
            "window_start_s": round(self.window_start_s, 2),
            "tokens": self.tokens,
            "temperature": 0.0,  # nothing is drawn
            "compression_ratio": round(self.compression_ratio, 4),
        }
        numbers = {"avg_logprob": self.avg_logprob, "no_speech_prob": self.no_speech_prob}
        return told | {name: float(f"{value:.6g}") for name, value in numbers.items() if value is not None}


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


def split_marks(tokens: Sequence[int], first_mark: int) -> list[Part]:
    """The parts of a window's tokens between its time marks: `first_mark` plus the time in steps of 0.02 s."""
    parts: list[Part] = []
    start_s, first, words = 0.0, 0, list[int]()
    for place, token in enumerate(tokens):
        if token < first_mark:
            words.append(token)
            continue
        mark_s = (token - first_mark) * MARK_S
        if words:
            parts.append(Part(start_s, mark_s, words, first, place + 1))
            words, first = [], place + 1
        else:
            first = place  # of several marks in a row the last one begins what follows
        start_s = mark_s
    if words:
        parts.append(Part(start_s, None, words, first, len(tokens)))
    return parts
