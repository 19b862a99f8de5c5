"""Owns what a plan that runs looks like over HTTP: its events by their names, and the record at its end.

It does not know how plans run.
"""

from typing import Any

from cartdeck.plain import plain
from cartdeck.plans.events import ItemFailed, PlanEnded, PlanEvent, StepEnded, StepLog, StepProgress, StepStarted
from cartdeck.plans.plain_result import output_record, plan_record
from cartdeck.plans.result import PlanResult
from cartdeck.server.event_stream import event
from cartdeck.server.refusal import reply_to
from cartdeck_protocol.errors import CartdeckError


def plan_event(one: PlanEvent) -> bytes:
    """The event as one of the stream; nothing for the plan's end, which has a record of its own."""
    match one:
        case StepStarted():
            record = {"step": one.step, "cap": one.cap, "cartridge": one.cartridge, "is_mapped": one.is_mapped}
            return event(record, "step")
        case StepProgress():
            names = ("step", "item", "fraction", "overall", "phase", "message", "work", "total", "items_done",
                     "items_total", "cartridge")  # fmt: skip  # one list
            return event(plain({name: getattr(one, name) for name in names}), "progress")
        case StepLog():
            names = ("step", "item", "level", "message", "cartridge")
            return event(plain({name: getattr(one, name) for name in names}), "log")
        case ItemFailed():
            return event({"step": one.step, "item": list(one.item), "error": _error(one.error)}, "item-failed")
        case StepEnded():
            record = {"step": one.step, "state": one.state.value, "overall": one.overall, "because": one.because}
            return event({**record, "error": None if one.error is None else _error(one.error)}, "step-end")
        case PlanEnded():
            return b""


def plan_end(result: PlanResult) -> dict[str, Any]:
    """The outputs by name, what is missing, and a report of each step."""
    outputs = {name: output_record(output) for name, output in result.outputs.items()}
    return plain(plan_record(result, outputs))


def _error(error: CartdeckError) -> dict[str, Any]:
    return reply_to(error).record
