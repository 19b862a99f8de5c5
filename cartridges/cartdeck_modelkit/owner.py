"""Owns the one thread that touches a model, the queue of jobs before it, and the way from a job to its request.

It does not know what a job does. Native libraries are not made for two threads at one model, and their thread pools
belong to the thread that began them: so every call into them is a job here, one after another, in order.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from cartdeck_protocol.errors import Code, failure

T = TypeVar("T")

MOST_UNREAD_CHARACTERS: Final = 4 * 1024 * 1024
"""Above it a job waits for its reader: far more than a text that fits a context has."""

LONGEST_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.1


class Job:
    """One request's work on the owner's thread, made on the event loop's thread.

    The owner's side calls `say`, `log` and `touch`; the loop's side reads `pieces`, and the lines that came with them.
    """

    def __init__(self, work: Callable[["Job"], None], *, abort: Callable[[], None] = lambda: None) -> None:
        """`work(job)` runs on the owner's thread; `abort()` is called at a cancel, from any thread, to end it early."""
        self.position = 0
        """How many jobs come before this one; 0 when it runs or is over."""
        self.is_cancelled = False
        self.owner: Owner | None = None
        self._work = work
        self._abort = abort
        self._outcome: Future[None] = Future()
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._unread = 0
        self._lines: list[tuple[str, str]] = []
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_waking = False

    @property
    def is_over(self) -> bool:
        """Whether the work is done, failed or was given up."""
        return self._outcome.done()

    def cancel(self) -> None:
        """Gives the work up: at once while it waits, as soon as `abort` takes effect while it runs."""
        self.is_cancelled = True
        self._abort()
        if self.owner is not None:
            self.owner.withdraw(self)
        self.touch()

    # the owner's thread

    def say(self, text: str) -> None:
        """Hands text to the reader. A reader that leaves too much of it makes the job wait, and fail in the end."""
        with self._lock:
            self._texts.append(text)
            self._unread += len(text)
        self.touch()
        if self._unread > MOST_UNREAD_CHARACTERS:
            self._wait_for_reader()

    def log(self, level: str, line: str) -> None:
        """Hands a line to the request's log."""
        with self._lock:
            self._lines.append((level, line))
        self.touch()

    def touch(self) -> None:
        """Wakes the reader, which looks at whatever the job counts."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: the process is leaving
            self.is_cancelled = True

    def run(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Does the work; its error is kept for the reader. `on_end()` is called before the reader can know."""
        try:
            if self.is_cancelled:
                raise failure(Code.CANCELLED, "the request was given up before its turn came", phase="queue")
            self._work(self)
        except BaseException as error:  # it is raised again on the reader's side
            on_end()
            self._outcome.set_exception(error)
        else:
            on_end()
            self._outcome.set_result(None)
        self.touch()

    def _wait_for_reader(self) -> None:
        waited, pause = 0.0, threading.Event()
        while self._unread > MOST_UNREAD_CHARACTERS and not self.is_cancelled:
            if waited >= LONGEST_WAIT_S:
                raise failure(
                    Code.READER_STALLED, f"{self._unread:,} characters of the answer were not read in {waited:.0f} s"
                )
            pause.wait(_LOOK_S)
            waited += _LOOK_S

    # the event loop's thread

    async def pieces(self) -> AsyncGenerator[str]:
        """The text as it comes; "" when the job counted or logged something and said nothing. Ends with the job, or
        raises what the work raised."""
        is_over = False
        while not is_over:
            await self._event.wait()
            self._event.clear()
            is_over = self.is_over  # asked before the text is taken, so that the last of it is not left behind
            yield self._take_text()
        self._outcome.result(timeout=0)

    def _take_text(self) -> str:
        with self._lock:
            texts, self._texts = self._texts, []
            self._unread = 0
        return "".join(texts)

    def take_lines(self) -> list[tuple[str, str]]:
        """The log lines that came since the last time, each with its level."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def _wake(self) -> None:
        self._is_waking = False
        self._event.set()


class Owner:
    """A thread that runs jobs in the order they came. It starts with the first one and ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Condition()
        self._waiting: deque[Job | Callable[[], None]] = deque()
        self._is_busy = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Puts the job at the end of the queue; its `position` says how many come before it."""
        job.owner = self
        self._put(job)

    def withdraw(self, job: Job) -> None:
        """Takes a job that waits out of the queue; one that runs or is over stays what it is."""
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
            self._renumber(first=1 if self._is_busy else 0)
        job.run()

    def call(self, function: Callable[[], T]) -> T:
        """What `function()` gives or raises, run in its turn on the owner's thread. Blocks: for worker threads."""
        return self.start(function).result()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Puts `function` into the queue without waiting for it."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:  # it is raised again in the calling thread
                self._rest()
                outcome.set_exception(error)
            else:
                self._rest()
                outcome.set_result(result)

        self._put(run)
        return outcome

    def _put(self, work: Job | Callable[[], None]) -> None:
        with self._lock:
            if isinstance(work, Job):
                work.position = len(self._waiting) + self._is_busy
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._lock.wait()
                work = self._waiting.popleft()
                self._is_busy = True
                self._renumber(first=1)
                if isinstance(work, Job):
                    work.position = 0
            if isinstance(work, Job):
                work.run(self._rest)
            else:
                work()

    def _rest(self) -> None:
        with self._lock:
            self._is_busy = False

    def _renumber(self, *, first: int) -> None:
        for position, work in enumerate(self._waiting, start=first):
            if isinstance(work, Job) and work.position != position:
                work.position = position
                work.touch()
