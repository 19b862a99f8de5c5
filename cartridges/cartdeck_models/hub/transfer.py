"""Owns bringing one file over HTTP into its part: ranges at once, new connections for broken ones, hashed meanwhile.

It does not know the cache, nor other files. The calling thread watches: it reports, notices a cancel, and then shuts
the connections, so that no thread waits for a silent peer. Workers take steps of the file in order, so that what is
there from the beginning on grows steadily and the hash keeps up.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from cartdeck_models.hub.client import Body, BrokenError, HubClient, RefusedError, StrangeAnswerError
from cartdeck_models.hub.digest import Digest, Hasher, HashingThread, Piece
from cartdeck_models.hub.patience import Patience
from cartdeck_models.hub.refusal import PHASE, Asked
from cartdeck_models.task import Advance, Task

STEP_BYTES = 32 * 1024 * 1024
WATCH_S = 0.1
LEAST_HASHED_APART_BYTES = 4 * 1024 * 1024
FIRST_WORKERS = 1
GROW_EVERY_S = 0.3
FAST_BYTES_S = 100e6
END_LIMIT_S = 2.0
_LOCATION_REFUSED = (400, 401, 403, 404, 410)


class Target(Protocol):
    """Where the bytes go: see `part.Part`."""

    size: int | None

    @property
    def done(self) -> int: ...

    @property
    def prefix(self) -> int: ...

    def gaps(self, longest: int) -> list[tuple[int, int]]: ...

    def write(self, at: int, piece: bytes | memoryview) -> int: ...

    def read_into(self, buffer: memoryview, at: int) -> int: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch, how it is named in messages, and how: `connections` at once, quiet for `stall_limit_s` at most.

    `wants_git` is whether the digest must have git's name of the content.
    """

    url: str
    asked: Asked
    connections: int
    stall_limit_s: float
    wants_git: bool = True


@dataclass(slots=True)
class _Step:
    """What one connection is to bring: [at, end); `at` moves on. `end` is None where nobody knows it."""

    at: int
    end: int | None

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.at >= self.end


class NoRangesError(Exception):
    """The server answers a request for a part with the whole."""


class Transfer:
    """One file. `run` gives its digest; the caller compares it."""

    def __init__(self, client: HubClient, wanted: Wanted, target: Target, task: Task) -> None:
        self._client = client
        self._wanted = wanted
        self._target = target
        self._task = task
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._steps: list[_Step] = []
        self._bodies: set[Body] = set()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._waiting: list[Callable[[], None]] = []
        self._grown_s, self._grown_at = 0.0, 0
        self._error: Exception | None = None
        self._note: Advance | None = None
        self._location: str | None = None
        self._furthest = 0
        self._hasher = Hasher(target, target.size if wanted.wants_git else None)
        self._hashing: HashingThread | None = None

    def run(self) -> Digest:
        """Fetch what is missing. Raises the typed errors of `patience` and `refusal`, CANCELLED, and OSError."""
        try:
            if self._target.size is None:
                raise NoRangesError
            self._steps = [_Step(start, end) for start, end in self._target.gaps(STEP_BYTES)]
            count = min(self._wanted.connections, len(self._steps))
            self._run_workers([self._work_on_steps] * count)
        except NoRangesError:
            self._begin_anew()
            self._run_workers([self._work_on_whole])
        self._hasher.catch_up(self._task.is_cancelled)
        self._task.raise_if_cancelled(PHASE)
        self._report()
        return self._hasher.digest()

    def _begin_anew(self) -> None:
        self._hasher.restart()
        self._target.forget()

    @property
    def _is_long(self) -> bool:
        return self._target.size is None or self._target.size >= LEAST_HASHED_APART_BYTES

    # watching

    def _run_workers(self, workers: list[Callable[[], None]]) -> None:
        """Run all to their ends, or to the first error; no worker is left behind but one that cannot be woken."""
        self._stopped.clear()
        self._error, self._note, self._running = None, None, 0
        self._hashing = HashingThread(self._hasher) if self._is_long else None
        self._threads, self._waiting = [], list(workers)
        try:
            for _ in range(FIRST_WORKERS):
                self._start_worker()
            self._watch()
        finally:
            self._stop(self._threads)
        if self._error is not None:
            raise self._error

    def _start_worker(self) -> None:
        if self._waiting:
            thread = threading.Thread(target=self._guarded, args=(self._waiting.pop(0),), name="fetch", daemon=True)
            with self._changed:
                self._running += 1
            self._threads.append(thread)
            self._grown_s, self._grown_at = time.monotonic(), self._target.done
            thread.start()

    def _start_more(self) -> None:
        """One more connection where those there are bring little: a fast link gains nothing by them."""
        taken_s = time.monotonic() - self._grown_s
        if taken_s >= GROW_EVERY_S and (self._target.done - self._grown_at) / taken_s < FAST_BYTES_S:
            self._start_worker()

    def _watch(self) -> None:
        told: Advance | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running == 0 or self._error is not None, WATCH_S)
                if self._running == 0 or self._error is not None:
                    return
                note = self._note
            self._task.raise_if_cancelled(PHASE)
            self._start_more()
            if note is None:
                self._report()
            elif note is not told:
                self._task.report(note)
            told = note

    def _stop(self, threads: list[threading.Thread]) -> None:
        self._stopped.set()
        with self._changed:
            bodies = list(self._bodies)
        for body in bodies:
            body.shut()
        for thread in threads:
            if thread.ident is not None:
                thread.join(END_LIMIT_S)
        if self._hashing is not None:
            self._hashing.stop()

    def _report(self) -> None:
        self._task.report(Advance(None, "", PHASE, max(self._furthest, self._target.done), self._target.size))

    # working

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            with self._changed:
                if self._error is None and not self._stopped.is_set():
                    self._error = error  # raised by the thread that watches
            self._stopped.set()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _work_on_steps(self) -> None:
        patience = self._patience()
        while not self._stopped.is_set():
            with self._changed:
                if not self._steps:
                    return
                step = self._steps.pop(0)
            self._persist(step, patience, self._read_step)

    def _work_on_whole(self) -> None:
        """One connection for all; where it breaks, the server is asked to go on, and may begin anew."""
        self._persist(_Step(0, self._target.size), self._patience(), self._read_whole)

    def _persist(self, step: _Step, patience: Patience, read: Callable[[_Step, Patience], None]) -> None:
        """Read `step` to its end, over as many connections as patience allows."""
        while not self._stopped.is_set():
            try:
                read(step, patience)
                return
            except (RefusedError, BrokenError, StrangeAnswerError) as trouble:
                if not self._is_over():
                    patience.after(trouble)

    def _read_step(self, step: _Step, patience: Patience) -> None:
        if step.is_done:
            return
        is_whole = step.at == 0 and step.end == self._target.size
        with self._opened(step.at, None if is_whole else step.end) as body:
            if body.first != step.at or (body.status == 200 and not is_whole):
                raise NoRangesError
            self._take(body, step, patience)

    def _read_whole(self, step: _Step, patience: Patience) -> None:
        if step.end is None:
            step.at = 0  # nobody can tell whether the rest would fit
        if step.is_done:
            return
        with self._opened(step.at, None) as body:
            if body.first not in (0, step.at):
                raise StrangeAnswerError(f"{self._wanted.asked.host} answers with another part of the file")
            if body.first == 0 and self._target.done:
                self._begin_anew()
            step.at = body.first
            self._take(body, step, patience, end=body.size if step.end is None else step.end)

    def _take(self, body: Body, step: _Step, patience: Patience, *, end: int | None = None) -> None:
        """Write what comes, piece by piece; what came is written also when the connection breaks.

        An answer that ends where it should is read to its end: only then may its connection serve the next one.
        """
        end = step.end if end is None else end
        is_exact = body.end is not None and body.end == end
        for piece in body.pieces():
            if self._stopped.is_set():
                return
            self._write(step, piece if end is None else piece[: end - step.at], patience)
            if end is not None and step.at >= end and not is_exact:
                break
        if end is not None and step.at < end and not self._stopped.is_set():
            raise BrokenError(self._wanted.asked.host, "the connection was cut", was_made=True)

    def _write(self, step: _Step, piece: bytes | memoryview, patience: Patience) -> None:
        at = step.at
        step.at = self._target.write(at, piece)
        written = Piece(at, piece, self._hasher.generation)
        if self._hashing is not None:
            self._hashing.offer(written)
        elif not self._hasher.feed(written):
            self._hasher.catch_up(self._stopped.is_set)
        patience.work = self._target.done
        self._note = None
        if patience.work > self._furthest:
            self._furthest = patience.work
            patience.moved()

    @contextmanager
    def _opened(self, first: int, end: int | None) -> Generator[Body]:
        """The bytes, from where the hub sent us last time; from the hub itself where that is refused."""
        known = self._location
        if known is not None:
            try:
                with self._followed(known, first, end) as body:
                    yield body
                    return
            except RefusedError as error:
                if error.refusal.status not in _LOCATION_REFUSED:
                    raise
                self._location = None
        with self._followed(self._wanted.url, first, end) as body:
            self._location = body.url if body.url != self._wanted.url else None
            yield body

    @contextmanager
    def _followed(self, url: str, first: int, end: int | None) -> Generator[Body]:
        with self._client.opened(url, first=first, end=end) as body:
            with self._changed:
                self._bodies.add(body)
            if self._stopped.is_set():
                body.shut()  # it came too late to be shut with the others
            try:
                yield body
            finally:
                with self._changed:
                    self._bodies.discard(body)

    # what is said

    def _patience(self) -> Patience:
        task = Task(self._set_note, self._is_over)
        return Patience(task, self._wanted.asked, self._wanted.stall_limit_s, self._target.done, self._target.size)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or self._task.is_cancelled()

    def _set_note(self, advance: Advance) -> None:
        with self._changed:
            self._note = advance
