"""Owns what a plan's result looks like as JSON. It does not know who reads it."""

from collections.abc import Mapping
from typing import Any, cast

from cartdeck.plain import plain
from cartdeck.plans.convert import Absent
from cartdeck.plans.result import Output, PlanResult
from cartdeck_protocol.errors import CartdeckError


def output_record(output: Output) -> dict[str, Any]:
    """An output under `text`, `items` or `base64`; an item that is missing as the record of its error."""
    if output.absent is not None:
        return {"absent": absent_record(output.absent)}
    if output.depth:
        return {"items": [_item(one) for one in output.items]}
    data = output.data
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return plain(data)


def _item(entry: Any) -> Any:
    if isinstance(entry, Absent):
        return {"absent": absent_record(entry)}
    if isinstance(entry, list):
        return [_item(one) for one in cast("list[Any]", entry)]
    if isinstance(entry, bytes):
        try:
            return entry.decode()
        except UnicodeDecodeError:
            return entry
    return entry


def absent_record(absent: Absent) -> dict[str, Any]:
    return {"step": absent.step, "item": list(absent.item), "error": _error(absent.error)}


def _error(error: CartdeckError) -> dict[str, Any]:
    return {"code": error.code_name, "message": error.message}


def plan_record(result: PlanResult, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result, with `outputs` as they are to be shown."""
    return {
        "outputs": dict(outputs),
        "missing": [absent_record(one) for one in result.missing],
        "steps": {
            name: {
                "state": report.state.value,
                "cartridge": report.cartridge,
                "because": report.because,
                "items": report.items,
                "reused": report.reused,
                "calls": report.tries,
                "seconds": round(report.seconds, 3),
                "provenance": report.provenance,
            }
            for name, report in result.steps.items()
        },
    }
