"""Owns a plan that runs for a caller that does not await: the same names as PlanRun's, from one thread at a time.

It does not know how a plan runs, nor how threads meet the loop.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from cartdeck.plans.events import PlanEvent
from cartdeck.plans.result import PlanResult
from cartdeck.plans.run import PlanRun
from cartdeck_protocol.errors import CartdeckError

T = TypeVar("T")


class Loop(Protocol):
    """The engine's loop, from another thread."""

    def on_loop(self, function: Callable[..., T], *arguments: Any) -> T: ...

    def wait_for(self, function: Callable[[], Awaitable[T]]) -> T: ...


class BlockingPlanRun:
    """A plan on its way: a context manager to iterate over, or to `collect()`. Made by `BlockingEngine.plan`.

    Leaving it before the end, by a KeyboardInterrupt too, cancels the plan and waits until its calls have ended.
    """

    def __init__(self, loop: Loop, run: PlanRun) -> None:
        self._loop = loop
        self._run = run
        self._is_begun = False

    def __enter__(self) -> Self:
        self._loop.on_loop(self._run.begin)
        self._is_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError, CartdeckError):  # the engine is closed, and the plan with it
            self._loop.wait_for(self._run.close)

    def __iter__(self) -> Iterator[PlanEvent]:
        self._check_begun()
        while batch := self._loop.wait_for(self._run.next_events):
            yield from batch

    def collect(self) -> PlanResult:
        """Wait for the end without looking at the events; the result. Raises the plan's error."""
        self._check_begun()
        return self._loop.wait_for(self._run.collect)

    @property
    def result(self) -> PlanResult:
        """What the plan gave, once it has come to its end. Raises its error if it failed."""
        return self._run.result

    @property
    def report(self) -> PlanResult:
        """As `PlanRun.report`: what there is, also of a plan that failed."""
        return self._run.report

    @property
    def error(self) -> CartdeckError | None:
        """The error of a plan that has failed."""
        return self._run.error

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the plan up; it ends with CANCELLED. Does nothing after the end, or when the engine is closed."""
        with contextlib.suppress(RuntimeError, CartdeckError):  # as above
            self._loop.on_loop(self._run.cancel, reason)

    def _check_begun(self) -> None:
        if not self._is_begun:
            raise RuntimeError("the plan is not open: use `with engine.plan(...) as run`")
