"""Owns the threads in which callers' plain iterables are asked for items.

It does not know calls or streams. An iterable may block for as long as it likes, so its threads are daemons of their
own: neither the engine's end nor the interpreter's waits for them, and nothing of the engine's runs in them.
"""

import asyncio
import contextlib
import contextvars
import math
import queue
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

_MOST_THREADS: Final = 64
"""So many iterables may block at once; others wait for a thread."""
_BATCH_S: Final = 0.002
"""An iterator is asked for items for so long, then they are handed over: a slow source's items are sent one by one, a
fast one's do not pay for a thread hop each."""
_PATIENCE_S: Final = 0.01
"""So long the first items wait for more of their batch: the next one may take a minute."""
_MOST_PATIENCE_S: Final = 1.0
"""So long they wait at most where the thread has not begun: it gets no core, or none is free."""


class _Threads:
    """Daemon threads, started when there is work for more of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._count = 0
        self._free = 0
        """Threads that wait for a job, less the jobs that wait for one of them."""

    def submit(self, job: Callable[[], None]) -> None:
        """Have the job done, now or when a thread is free. Raises RuntimeError where the machine gives no thread: a
        later one may do the job all the same."""
        with self._lock:
            self._free -= 1
            self._jobs.put(job)
            if self._free >= 0 or self._count >= self._most:
                return
            self._count += 1
            self._free += 1
            name = f"cartdeck-source-{self._count}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except Exception:
            with self._lock:
                self._count -= 1
                self._free -= 1
            raise

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._free += 1


_THREADS: Final = _Threads(_MOST_THREADS)


class Source:
    """One iterable that is asked for items in a thread, a batch at a time and never two at once."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()
        self._items: list[Any] = []
        """What the thread got since the last hand-over."""
        self._answer: asyncio.Future[_Outcome] | None = None
        """What the thread is at work on; None while it is not."""
        self._until_s = math.inf
        """From then on the thread hands over each item as it comes; infinite while it has not begun."""

    async def next_items(self) -> tuple[list[Any], bool]:
        """The next items, and whether that was all; now and then none, where those that came were handed over before.
        Raises what the iterator raises, whatever it is, and RuntimeError where the machine gives no thread."""
        loop = asyncio.get_running_loop()
        answer = self._answer
        if answer is None:
            answer = self._answer = loop.create_future()
            self._until_s = math.inf
            self._submit(loop, answer)
        patience_s = _PATIENCE_S
        while True:
            try:
                await asyncio.wait((answer,), timeout=patience_s)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            is_last_look = answer.done() or monotonic() >= self._until_s
            if not answer.done() and (items := self._taken()):
                return items, False  # they came at once, and the next one does not: it is still waited for
            if is_last_look:
                break
            patience_s = min(2 * patience_s, _MOST_PATIENCE_S)
        is_done, error = await answer
        self._answer = None
        if error is not None:
            raise error
        return self._taken(), is_done

    def _submit(self, loop: asyncio.AbstractEventLoop, answer: "asyncio.Future[_Outcome]") -> None:
        context = contextvars.copy_context()

        def job() -> None:
            if answer.cancelled():  # whoever asked has left while this waited for a thread
                return
            outcome = context.run(self._take)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, outcome)

        try:
            _THREADS.submit(job)
        except Exception:
            answer.cancel()
            self._answer = None
            raise

    def _taken(self) -> list[Any]:
        with self._lock:
            items, self._items = self._items, []
        return items

    def _take(self) -> "_Outcome":
        until_s = self._until_s = monotonic() + _BATCH_S
        try:
            for item in self._iterator:
                with self._lock:
                    self._items.append(item)
                if monotonic() >= until_s:
                    return False, None
        except BaseException as error:  # it is the caller's, and goes to the caller
            self._taken()
            return True, error
        return True, None


_Outcome = tuple[bool, BaseException | None]
"""Whether the iterator is at its end, and what it raised."""


def _settle(answer: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)
