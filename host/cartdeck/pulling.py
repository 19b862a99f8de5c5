"""Owns the threads in which callers' plain iterables are asked for items.

It does not know calls or streams. An iterable may block for as long as it likes, so its threads are daemons of their
own: neither the engine's end nor the interpreter's waits for them, and nothing of the engine's runs in them.
"""

import asyncio
import contextlib
import contextvars
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
        with self._lock:
            self._free -= 1
            self._jobs.put(job)
            if self._free >= 0 or self._count >= self._most:
                return
            self._count += 1
            self._free += 1
            name = f"cartdeck-source-{self._count}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._free += 1


_THREADS: Final = _Threads(_MOST_THREADS)


async def pull(iterator: Iterator[Any]) -> tuple[list[Any], bool]:
    """The next items, and whether that was all. Raises what the iterator raises, whatever it is."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[list[Any], bool, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def job() -> None:
        if answer.cancelled():  # whoever asked has left while this waited for a thread
            return
        outcome = context.run(_take, iterator)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, answer, outcome)

    _THREADS.submit(job)
    items, is_done, error = await answer
    if error is not None:
        raise error
    return items, is_done


def _take(iterator: Iterator[Any]) -> tuple[list[Any], bool, BaseException | None]:
    until_s = monotonic() + _BATCH_S
    items: list[Any] = []
    try:
        for item in iterator:
            items.append(item)
            if monotonic() >= until_s:
                return items, False, None
    except BaseException as error:  # it is the caller's, and goes to the caller
        return [], True, error
    return items, True, None


def _settle(answer: asyncio.Future[Any], outcome: tuple[list[Any], bool, BaseException | None]) -> None:
    if not answer.done():
        answer.set_result(outcome)
