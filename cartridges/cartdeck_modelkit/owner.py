"""Owns the one thread that touches a model: what is asked of it, one after another, and the work it goes on with.

It does not know what it does. Native libraries are not made for two threads at one model, and their thread pools belong
to the thread that began them: so every call into them happens here.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

Work = Callable[[], float | None]
"""One step of what the thread goes on with. The answer is when it wants the next one: in so many seconds, 0 being at
once, or None for when it is woken."""


class Owner:
    """A thread that runs functions in the order they came, and a step of its work after each and while none waits. It
    starts with the first of either and ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._work: Work | None = None
        self._is_awake = False
        self._thread: threading.Thread | None = None

    def go_on_with(self, work: Work) -> None:
        """Has the thread do `work`, steps of it, from now on. A step raises nothing."""
        self._work = work
        self.wake()

    def wake(self) -> None:
        """Says, from any thread, that there may be work."""
        with self._lock:
            self._is_awake = True
            self._notify()

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
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        with self._lock:
            self._waiting.append(run)
            self._notify()
        return outcome

    def _notify(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._lock.notify()

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._lock:
                while not self._waiting and not self._is_awake and pause_s != 0:
                    if not self._lock.wait(pause_s):
                        break
                function = self._waiting.popleft() if self._waiting else None
                self._is_awake = False
            if function is not None:
                function()
            pause_s = self._work() if self._work is not None else None
