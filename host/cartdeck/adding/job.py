"""Owns a job on its way: its steps one after another, its events, the cancel, and its one end.

It does not know what the steps do. It holds no task group across its caller's code: its one task is the engine's, so
that it may be opened in one task and closed in another, and errors arrive bare.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from cartdeck.adding.step import JobEnded, JobEvent, Step, StepBegan, StepEnded, StepProgress
from cartdeck.engine import Engine
from cartdeck.event_source import EventSource, wait_for_end
from cartdeck.events import Progress, Result
from cartdeck_protocol.errors import CartdeckError, Code, failure, from_wire

KEEP_BYTES = 64 * 1024 * 1024
"""Of the answers that a job reads: records, and what a smoke test brings."""
_LABELS: Final = frozenset(step.label for step in Step)
Work = Callable[["Job"], Awaitable[dict[str, Any]]]


class Job(EventSource[JobEvent]):
    """A job. Use it as an async context manager and iterate over it, or `collect()`.

    Leaving the context before the end cancels it and waits until nothing of it runs. `result` is there after the end.
    """

    def __init__(self, engine: Engine, work: Work, *, subject: str) -> None:
        """`work(job)` does the steps, by `job.step` and `job.ask`; what it returns is the job's result. `subject` is
        what of the job's request names the model: errors about a call's argument `model` are about that."""
        self._engine = engine
        self._work = work
        self._subject = subject
        self._events: list[JobEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._overall = 0.0
        self._step: Step | None = None
        self._text = ""
        self._detail: dict[str, Any] = {}
        self._reason = "the caller cancelled it"
        self._is_final = False
        self._has_told_end = False
        self._result: dict[str, Any] | None = None
        self._error: CartdeckError | None = None
        self.steps: list[dict[str, Any]] = []
        """The steps that ended: `step`, `seconds`, `text`, and what else there is to say."""

    # -- for the caller

    def begin(self) -> None:
        """Start it. Raises ABORTED on an engine that is not open."""
        if self._task is not None:
            raise RuntimeError("a job can be run once")
        self._engine.check_open()
        self._began_s = time.monotonic()
        self._task = self._engine.start_task(self._run())

    async def next_events(self) -> list[JobEvent]:
        """The next events, waiting for at least one; [] after the end. Raises the job's error behind the last one."""
        if self._has_told_end:
            if self._error is not None:
                raise self._error
            return []
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        self._has_told_end = isinstance(events[-1], JobEnded)
        return events

    async def collect(self) -> dict[str, Any]:
        """Wait for the end without looking at the events; the result. Raises the job's error."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return self.result

    @property
    def result(self) -> dict[str, Any]:
        """What the job gave. Raises its error if it failed, RuntimeError while it runs."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("the job has not ended")
        return self._result

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the job up, wherever it stands. Does nothing after the end, nor while the catalog is written: what is
        begun there is ended."""
        if self._task is not None and not self._task.done() and not self._is_final:
            self._reason = reason
            self._task.cancel()

    async def close(self) -> None:
        """Cancel the job if it runs, and wait until nothing of it is left, also for a caller that is cancelled."""
        task = self._task
        if task is None:
            return
        self.cancel("its caller left")
        await wait_for_end(task)

    # -- for the work

    @property
    def engine(self) -> Engine:
        return self._engine

    @asynccontextmanager
    async def step(self, step: Step) -> AsyncGenerator[None]:
        """What is done inside is this step: its beginning, its end with what was said of it, and its time are told. An
        error inside names the step."""
        began_s = time.monotonic()
        self._step, self._text, self._detail = step, "", {}
        self._overall = max(self._overall, step.base)
        self._tell(StepBegan(step, self._overall))
        yield
        self._overall = max(self._overall, step.end)
        seconds = time.monotonic() - began_s
        record = {"step": step.label, "seconds": round(seconds, 3), "text": self._text, **self._detail}
        self.steps.append(record)
        self._tell(StepEnded(step, self._overall, seconds, self._text, self._detail))

    def say(self, text: str, **detail: Any) -> None:
        """What came of the step that runs."""
        self._text, self._detail = text, {**self._detail, **detail}

    def finalize(self) -> None:
        """From here on a cancel comes too late."""
        self._is_final = True

    async def ask(self, cap: str, arguments: Mapping[str, Any], *, part: tuple[float, float] = (0.0, 1.0)) -> Result:
        """The result of a call, whose progress is that `part` of the step's. Raises the call's error."""
        step = self._step
        assert step is not None
        async with self._engine.call(cap, arguments, keep_bytes=KEEP_BYTES) as call:
            async for event in call:
                if isinstance(event, Progress):
                    fraction = part[0] + (event.fraction or 0.0) * (part[1] - part[0])
                    self._tell_progress(step, fraction, event)
        return call.result

    # -- inside

    async def _run(self) -> None:
        try:
            self._result = await self._work(self)
        except CartdeckError as error:
            self._error = self._placed(error)
        except asyncio.CancelledError:
            message = f"the job was cancelled: {self._reason}. What was fetched is kept: the same again goes on there"
            self._error = self._placed(failure(Code.CANCELLED, message))
        except Exception as error:  # the job's own edge: whoever waits for it must hear of it
            self._error = self._placed(failure(Code.INTERNAL, f"unexpected {type(error).__name__}: {error}"))
            self._error.__cause__ = error
        else:
            self._overall = 1.0
        spent_s = time.monotonic() - self._began_s
        step = self._step if self._error is not None else None
        self._tell(JobEnded(self._overall, spent_s, self._error, step))

    def _placed(self, error: CartdeckError) -> CartdeckError:
        """The error with its step: in its message, and as `step` and `steps` in its details. A phase of the call that
        is called as another step, as what the registry refuses has `download`, is not what the user was told."""
        if self._step is None:
            return error
        label = self._step.label
        wire = {**error.to_wire(), "message": f"{label}: {error.message}"}
        wire["details"] = {**error.details, "step": label, "steps": self.steps}
        if error.phase in _LABELS:
            wire["phase"] = label
        if error.argument == "model":
            wire["argument"] = self._subject
        return from_wire(wire)

    def _tell_progress(self, step: Step, fraction: float, event: Progress) -> None:
        self._overall = max(self._overall, step.at(fraction))
        told = StepProgress(step, self._overall, event.phase, event.message, event.work, event.total)
        last = self._events[-1] if self._events else None
        if isinstance(last, StepProgress):  # nobody took it yet: the latest alone counts
            self._events[-1] = told
        else:
            self._tell(told)

    def _tell(self, event: JobEvent) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
