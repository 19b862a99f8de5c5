"""Owns the progress of several files as one: bytes over all of them, which one is on, how fast, how long still.

It does not know transfers. Each file has a task of its own; whatever it reports, the sum never falls.
"""

import threading
import time
from collections.abc import Sequence

from cartdeck_models.hub.listing import RepositoryFile
from cartdeck_models.hub.refusal import PHASE
from cartdeck_models.task import Advance, FileAdvance, IsCancelled, Meter, Task

REPORT_EVERY_S = 0.1


class Tally:
    """The files of one model. Its tasks may be used from several threads."""

    def __init__(self, task: Task, name: str, files: Sequence[RepositoryFile]) -> None:
        self._task = task
        self._name = name
        self._count = len(files)
        self._meter = Meter(name)
        self._lock = threading.Lock()
        self._files = files
        self._work = [0] * len(files)
        self._begun: dict[int, bool] = {}
        self._finished = 0
        self._reported_s = float("-inf")
        self._phase = ""
        self.total = sum(file.size_bytes for file in files) if all(file.is_size_known for file in files) else None

    @property
    def work(self) -> int:
        return sum(self._work)

    def task_of(self, index: int, file: RepositoryFile, *, is_over: IsCancelled = lambda: False) -> Task:
        """The task for fetching the file with this index; it ends also when `is_over` says so."""
        return Task(lambda advance: self._take(index, file, advance), lambda: is_over() or self._task.is_cancelled())

    def finish(self, index: int, size_bytes: int) -> None:
        """The file with this index is there."""
        with self._lock:
            self._work[index] = max(self._work[index], size_bytes)
            self._begun[index] = True
            self._finished += 1

    def say(self) -> None:
        """Report how it stands now."""
        with self._lock:
            self._report(PHASE, self._meter.message(self.work, self.total))

    def _take(self, index: int, file: RepositoryFile, advance: Advance) -> None:
        with self._lock:
            self._work[index] = max(self._work[index], advance.work or 0)
            self._begun.setdefault(index, False)
            now_s = time.monotonic()
            if advance.phase == self._phase and now_s - self._reported_s < REPORT_EVERY_S:
                return
            self._reported_s = now_s
            if self._count > 1:
                number = min(self._finished + 1, self._count)
                self._meter.name = f"{self._name}, file {number} of {self._count}, {file.path}"
            else:
                self._meter.name = f"{self._name}, {file.path}"
            message = self._meter.message(self.work, self.total)
            if advance.message:
                message = f"{message}; {advance.message}"
            self._report(advance.phase, message)

    def _report(self, phase: str, message: str) -> None:
        self._phase = phase
        fraction = self.work / self.total if self.total else None
        self._task.report(Advance(fraction, message, phase, self.work, self.total, self._file_advances))

    def _file_advances(self) -> list[FileAdvance]:
        with self._lock:
            begun = list(self._begun.items())
        return [self._file_advance(index, is_done=is_done) for index, is_done in begun]

    def _file_advance(self, index: int, *, is_done: bool) -> FileAdvance:
        file, work = self._files[index], self._work[index]
        return FileAdvance(file.path, work, file.size_bytes if file.is_size_known else None, is_done)
