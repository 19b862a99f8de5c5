"""Owns the verdict: whether a model fits the disk and the memory of this machine, and the sentence that says why.

It is pure: sizes, growth and room are handed in. It does not know where a model comes from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cartdeck_modelkit.gguf.memory import MemoryEstimate
from cartdeck_models.growth import LARGEST_CONTEXT, Growth
from cartdeck_models.task import size_text

USEFUL_CONTEXT: Final = 4096
"""Tokens that a model must be able to keep in view, or all that it was made for, to count as one that fits."""
_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class Room:
    """What there is, in bytes: free memory (None where the system does not say), free disk in the models' folder."""

    memory_bytes: int | None
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Files that are one model. `missing_bytes` is what of them is not on this machine yet."""

    path: str
    files: tuple[str, ...]
    size_bytes: int
    weights_bytes: int
    missing_bytes: int
    quantization: str | None = None
    projector: str | None = None
    projector_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `judge` found. `estimate` is None where only the size of the weights is known; `is_capped` says that its
    context is smaller than the model's own."""

    candidate: Candidate
    estimate: MemoryEstimate | None
    own_context: int | None
    is_capped: bool
    fits_disk: bool
    fits_memory: bool | None
    sentence: str
    architecture: str | None = None
    """As the model's header or configuration names it; None where neither was read."""

    @property
    def fits(self) -> bool | None:
        """True, False, or None where memory is not known."""
        return False if not self.fits_disk else self.fits_memory

    def to_plain(self) -> dict[str, Any]:
        """The candidate's part of the record that fit-model gives."""
        candidate, estimate = self.candidate, self.estimate
        return {
            "path": candidate.path,
            "quantization": candidate.quantization,
            "architecture": self.architecture,
            "files": list(candidate.files),
            "size_bytes": candidate.size_bytes,
            "missing_bytes": candidate.missing_bytes,
            "projector": None
            if candidate.projector is None
            else {"path": candidate.projector, "size_bytes": candidate.projector_bytes},
            "context_size": None if estimate is None else estimate.context_size,
            "own_context": self.own_context,
            "memory_bytes": candidate.weights_bytes if estimate is None else estimate.total_bytes,
            "memory": None
            if estimate is None
            else {
                "weights_bytes": estimate.weights_bytes,
                "cache_bytes": estimate.cache_bytes,
                "compute_bytes": estimate.compute_bytes,
                "vocabulary_bytes": estimate.vocabulary_bytes,
            },
            "fits": self.fits,
            "fits_disk": self.fits_disk,
            "fits_memory": self.fits_memory,
            "sentence": self.sentence,
        }


def judge(candidate: Candidate, growth: Growth | None, room: Room, *, context_size: int = 0) -> Verdict:
    """Whether `candidate` fits `room` with a context of `context_size` tokens.

    0 is the model's own context, as far as half of the memory left by the weights, as the loader has it; the candidate
    then fits when `USEFUL_CONTEXT` tokens do. Without a growth the weights alone are looked at.
    """
    fits_disk = candidate.missing_bytes <= room.disk_bytes
    if growth is None:
        fits_memory = None if room.memory_bytes is None else candidate.weights_bytes <= room.memory_bytes
        sentence = _weights_sentence(candidate, room, fits_memory)
        return Verdict(candidate, None, None, False, fits_disk, fits_memory, _and_disk(sentence, candidate, room))
    own = growth.own_context or USEFUL_CONTEXT
    weights, memory = candidate.weights_bytes, room.memory_bytes
    if context_size or memory is None:
        estimate = growth.estimate(context_size or own, weights)
        fits_memory = None if memory is None else estimate.total_bytes <= memory
    else:
        fits_memory = growth.estimate(min(own, USEFUL_CONTEXT), weights).total_bytes <= memory
        estimate = growth.estimate(_affordable(growth, own, max(0, memory - weights) // 2), weights)
    is_capped = not context_size and estimate.context_size < own
    sentence = _memory_sentence(candidate, estimate, room, fits_memory, own if is_capped else None)
    return Verdict(
        candidate,
        estimate,
        growth.own_context,
        is_capped,
        fits_disk,
        fits_memory,
        _and_disk(sentence, candidate, room),
        growth.architecture,
    )


def best(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The first of `verdicts`, in the order of preference, that fits or may fit; None where none does."""
    return next((verdict for verdict in verdicts if verdict.fits is not False), None)


def _affordable(growth: Growth, own: int, free_bytes: int) -> int:
    """The largest context up to `own` whose cache and buffers take `free_bytes`; `USEFUL_CONTEXT` where less fits, so
    that what is missing can be told."""

    def fits(context_size: int) -> bool:
        return growth.estimate(context_size, 0).total_bytes <= free_bytes

    own = min(own, LARGEST_CONTEXT)
    least = min(own, USEFUL_CONTEXT)
    if fits(own):
        return own
    low, high = least // _STEP, own // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * _STEP) else (low, middle - 1)
    return max(least, low * _STEP)


def _memory_sentence(
    candidate: Candidate, estimate: MemoryEstimate, room: Room, fits: bool | None, own_if_capped: int | None
) -> str:
    need = f"about {size_text(estimate.total_bytes)} of memory with a context of {estimate.context_size:,} tokens"
    if own_if_capped is not None:
        need += f" (of its own {own_if_capped:,})"
    if room.memory_bytes is None or fits is None:
        return f"It needs {need}; how much is free is not known here."
    free = size_text(room.memory_bytes)
    if fits:
        return f"It fits: it needs {need}, and {free} are free."
    if candidate.weights_bytes > room.memory_bytes:
        return f"It does not fit: its weights alone take {size_text(candidate.weights_bytes)}, and {free} are free."
    return f"It does not fit: it needs {need}, and {free} are free."


def _weights_sentence(candidate: Candidate, room: Room, fits: bool | None) -> str:
    weights = f"its weights take {size_text(candidate.weights_bytes)} of memory"
    if room.memory_bytes is None:
        return f"At least {weights}; how much is free is not known here."
    free = size_text(room.memory_bytes)
    if fits:
        return f"It may fit: {weights}, what its context adds is not known, and {free} are free."
    return f"It does not fit: {weights}, and {free} are free."


def _and_disk(sentence: str, candidate: Candidate, room: Room) -> str:
    if not candidate.missing_bytes:
        return sentence
    missing, free = size_text(candidate.missing_bytes), size_text(room.disk_bytes)
    if candidate.missing_bytes > room.disk_bytes:
        return f"The disk has no room: {missing} are to be fetched, and {free} are free. {sentence}"
    return f"{sentence} To fetch: {missing}."
