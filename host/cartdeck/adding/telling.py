"""Owns what a job's events look like as records, for programs.

It does not know how they are sent.
"""

from typing import Any

from cartdeck.adding.step import JobEvent, StepBegan, StepEnded, StepProgress
from cartdeck.plain import plain


def event_record(event: JobEvent) -> tuple[str, dict[str, Any]]:
    """The event's name and record: `step`, `progress` or `step-end`. The job's own end has a record of its own: what
    it gave, or its error."""
    match event:
        case StepBegan():
            return "step", {"step": event.step.label, "title": event.step.title, "overall": event.overall}
        case StepProgress():
            names = ("overall", "phase", "message", "work", "total")
            return "progress", {"step": event.step.label, **plain({name: getattr(event, name) for name in names})}
        case StepEnded():
            record = {"step": event.step.label, "overall": event.overall, "seconds": round(event.seconds, 3)}
            return "step-end", {**record, "text": event.text, **plain(event.detail)}
        case _:
            return "end", {"overall": event.overall, "seconds": round(event.seconds, 3)}
