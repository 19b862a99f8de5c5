"""Owns what a running job is handed: where its progress goes, and whether it is still wanted.

It does not know frames, handlers or threads; a report and a question are plain functions.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cartdeck_protocol.errors import Code, failure

RATE_WINDOW_S = 5.0
"""A transfer's rate is measured over this long."""
POLL_S = 0.1
"""How often a job that waits looks whether it is still wanted."""


@dataclass(frozen=True, slots=True)
class FileAdvance:
    """How far one file of a job is, in bytes; `total` is None where it is not known."""

    path: str
    work: int
    total: int | None
    is_done: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a job is: `fraction` in [0, 1] or None while unknown; `work` of `total` bytes of the phase.

    `files` tells how far each file is that was begun, at the time when it is asked; None for a job that has no files.
    """

    fraction: float | None
    message: str
    phase: str
    work: int | None = None
    total: int | None = None
    files: Callable[[], Sequence[FileAdvance]] | None = None


Report = Callable[[Advance], None]
IsCancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """A job's two ends: `report` takes its progress, `is_cancelled` says that nobody wants it any more."""

    report: Report
    is_cancelled: IsCancelled

    def raise_if_cancelled(self, phase: str) -> None:
        """Raises CANCELLED once nobody wants the job any more."""
        if self.is_cancelled():
            raise cancelled(phase)


def pause(task: Task, seconds: float, phase: str) -> None:
    """Wait so long. Raises CANCELLED within a tenth of a second once nobody wants the job any more."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        task.raise_if_cancelled(phase)
        time.sleep(min(POLL_S, left_s))
    task.raise_if_cancelled(phase)


def cancelled(phase: str) -> Exception:
    return failure(Code.CANCELLED, "The model is not wanted any more: the caller cancelled.", phase=phase)


class Meter:
    """Turns counted bytes into a message: what, how much of how much, how fast, how long still."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._marks: deque[tuple[float, int]] = deque()

    def message(self, work: int, total: int | None, *, now_s: float | None = None) -> str:
        """A line for people, such as `x.gguf: 40.0 of 92.9 MB, 11.8 MB/s, 4 s left`."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._marks and work < self._marks[-1][1]:
            self._marks.clear()
        self._marks.append((now_s, work))
        while now_s - self._marks[0][0] > RATE_WINDOW_S and len(self._marks) > 2:
            self._marks.popleft()
        text = f"{self.name}: {size_of_text(work, total)}"
        rate = self._rate()
        if rate > 0 and work != total:
            text += f", {size_text(rate)}/s"
            if total is not None:
                text += f", {math.ceil((total - work) / rate)} s left"
        return text

    def _rate(self) -> float:
        (start_s, start), (end_s, end) = self._marks[0], self._marks[-1]
        return (end - start) / (end_s - start_s) if end_s > start_s else 0.0


_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def size_text(size_bytes: float) -> str:
    """A size in decimal units, as package indexes and model pages write it: `92.9 MB`."""
    for unit, scale in _UNITS:
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{int(size_bytes)} B"


def size_of_text(work: int, total: int | None) -> str:
    """`40.0 of 92.9 MB`; the work alone where the total is unknown."""
    if total is None:
        return size_text(work)
    for unit, scale in _UNITS:
        if total >= scale:
            return f"{work / scale:.1f} of {total / scale:.1f} {unit}"
    return f"{work} of {total} B"
