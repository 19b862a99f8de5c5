"""Owns long work in a worker thread: its progress sender, and the repeats that say *alive* meanwhile.

It does not know what the work is. A repeat carries the last values: only the work itself can show an advance.
"""

from asyncio import AbstractEventLoop, CancelledError, Future, wait
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Report(Protocol):
    """The thread-safe progress sender that the work is given."""

    def __call__(
        self, fraction: float, message: str | None = None, work: float | None = None, total: float | None = None
    ) -> None: ...


class Runner(Protocol):
    """What the keepalive needs of the service."""

    loop: AbstractEventLoop
    keepalive_s: float

    def run_in_worker(self, function: Callable[[], T]) -> "Future[T]": ...


class ProgressSink(Protocol):
    def progress(
        self,
        fraction: float,
        message: str = "",
        *,
        phase: str | None = None,
        work: float | None = None,
        total: float | None = None,
    ) -> None: ...


class _Reporter:
    """Holds the last values; sends each report on the loop, the newest of a burst only."""

    def __init__(
        self, loop: AbstractEventLoop, sink: ProgressSink, *, progress: float, message: str, phase: str | None
    ) -> None:
        self._loop = loop
        self._sink = sink
        self._message = message
        self._phase = phase
        self._values: tuple[float, float | None, float | None] = (progress, None, None)
        self._is_scheduled = False

    def __call__(
        self, fraction: float, message: str | None = None, work: float | None = None, total: float | None = None
    ) -> None:
        self._values = (fraction, work, total)
        if message is not None:
            self._message = message
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed: the process is leaving
                self._loop.call_soon_threadsafe(self.send)

    def send(self) -> None:
        self._is_scheduled = False
        fraction, work, total = self._values
        self._sink.progress(fraction, self._message, phase=self._phase, work=work, total=total)


async def run_reporting(
    runner: Runner,
    sink: ProgressSink,
    function: Callable[[Report], T],
    *,
    progress: float,
    message: str,
    phase: str | None,
) -> T:
    """The result of `function(report)`, run in a worker thread; the last report is repeated every `keepalive_s`."""
    reporter = _Reporter(runner.loop, sink, progress=progress, message=message, phase=phase)
    reporter.send()
    future = runner.run_in_worker(lambda: function(reporter))
    try:
        while not future.done():
            await wait((future,), timeout=runner.keepalive_s)
            if not future.done():
                reporter.send()
    except CancelledError:
        future.cancel()  # what waits for a thread is not begun any more; of what runs nobody wants to know the end
        raise
    return future.result()
