"""Owns the public names of plans, each loaded when it is first used: graphs of cap calls, as text or made in Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cartdeck.plans.blocking_run import BlockingPlanRun
    from cartdeck.plans.compiling import CompiledPlan, CompiledStep, Value, compile_plan
    from cartdeck.plans.convert import Absent
    from cartdeck.plans.drawing import mermaid, terminal_lines
    from cartdeck.plans.events import (
        ItemFailed,
        PlanEnded,
        PlanEvent,
        StepEnded,
        StepLog,
        StepProgress,
        StepStarted,
        StepState,
    )
    from cartdeck.plans.graph import Step, StepSettings
    from cartdeck.plans.inputs import Items, One
    from cartdeck.plans.path_search import Chain, find_chains
    from cartdeck.plans.plan import Plan
    from cartdeck.plans.report import StepReport
    from cartdeck.plans.result import Output, PlanResult
    from cartdeck.plans.run import PlanRun, run_plan
    from cartdeck.plans.svg import to_svg

__all__ = [
    "Absent",
    "BlockingPlanRun",
    "Chain",
    "CompiledPlan",
    "CompiledStep",
    "ItemFailed",
    "Items",
    "One",
    "Output",
    "Plan",
    "PlanEnded",
    "PlanEvent",
    "PlanResult",
    "PlanRun",
    "Step",
    "StepEnded",
    "StepLog",
    "StepProgress",
    "StepReport",
    "StepSettings",
    "StepStarted",
    "StepState",
    "Value",
    "compile_plan",
    "find_chains",
    "mermaid",
    "run_plan",
    "terminal_lines",
    "to_svg",
]

_HOMES = {
    "blocking_run": ("BlockingPlanRun",),
    "compiling": ("CompiledPlan", "CompiledStep", "Value", "compile_plan"),
    "convert": ("Absent",),
    "drawing": ("mermaid", "terminal_lines"),
    "events": (
        "ItemFailed", "PlanEnded", "PlanEvent", "StepEnded", "StepLog", "StepProgress", "StepStarted", "StepState",
    ),
    "graph": ("Step", "StepSettings"),
    "inputs": ("Items", "One"),
    "path_search": ("Chain", "find_chains"),
    "plan": ("Plan",),
    "result": ("Output", "PlanResult"),
    "run": ("PlanRun", "run_plan"),
    "report": ("StepReport",),
    "svg": ("to_svg",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
