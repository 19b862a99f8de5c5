"""Owns one job run from the command line: its steps as they go, as lines for a person or as JSON lines.

It does not know what the job does.
"""

from collections.abc import Callable
from typing import Any

import anyio

from cartdeck.adding.job import Job
from cartdeck.adding.step import JobEnded, JobEvent, Step, StepBegan, StepEnded, StepProgress
from cartdeck.adding.telling import event_record
from cartdeck.cli.bar import open_display
from cartdeck.cli.display import Display
from cartdeck.cli.listing import print_text
from cartdeck.cli.render import json_line
from cartdeck.cli.running import run_interruptible, shown
from cartdeck.engine import Engine
from cartdeck.events import Progress

NEWS_EVERY_S = 1.0


def run_job(make: Callable[[Engine], Job], *, as_json: bool, is_quiet: bool) -> dict[str, Any]:
    """Run the job to its end; its result. With `as_json` each event is a line on standard output, the last one aside.

    Raises the job's error, ReaderGone, or Interrupted when the job has been cancelled.
    """

    async def work() -> dict[str, Any]:
        display = open_display(is_quiet=is_quiet or as_json, is_verbose=False)
        async with Engine() as engine, shown(display), make(engine) as job:
            try:
                await _follow(job, display, _Lines() if as_json else None)
            except anyio.get_cancelled_exc_class():
                display.note("stopped: what was fetched is kept, and the same command goes on there")
                raise
            return job.result

    return run_interruptible(work)


async def _follow(job: Job, display: Display, lines: "_Lines | None") -> None:
    async for event in job:
        if lines is not None:
            lines.write(event)
        else:
            _show(display, event)


class _Lines:
    """The events as JSON lines. Progress is written once a second, the rest as it comes."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def write(self, event: JobEvent) -> None:
        if isinstance(event, JobEnded):
            return
        if isinstance(event, StepProgress):
            if anyio.current_time() - self._said_s < NEWS_EVERY_S:
                return
            self._said_s = anyio.current_time()
        name, record = event_record(event)
        print_text(json_line({"event": name, **record}))


def _show(display: Display, event: JobEvent) -> None:
    match event:
        case StepBegan():
            display.progress(Progress(event.overall, event.step.title, event.step.label, None, None, ""))
        case StepProgress():
            words = event.message or event.step.title
            # Of a download alone the amount is shown, in bytes: elsewhere the words say what is counted.
            work, total = (event.work, event.total) if event.step is Step.DOWNLOAD else (None, None)
            display.progress(Progress(event.overall, words, event.step.label, work, total, ""))
        case StepEnded():
            display.note(f"{event.step.label:<10} {event.seconds:6.1f} s  {event.text}")
        case JobEnded():
            pass
