"""Owns the steps and the values of a run, each made when it is first needed.

It does not know when a step may start. A plan's steps all made before the first call cost a chain of short calls a
twelfth of its time; made while the step before them waits for its cartridge, they cost it next to nothing.
"""

from cartdeck.plans.compiling import CompiledPlan, CompiledStep
from cartdeck.plans.flow import Flow
from cartdeck.plans.mapped_run import MappedRun
from cartdeck.plans.plain_map import PlainMap, is_plain
from cartdeck.plans.report import StepReport
from cartdeck.plans.single_run import SingleRun
from cartdeck.plans.step_run import Context, StepRun


class StepMaker:
    """`flow` and `made_readers` make what is not there yet; `made_all` all steps."""

    def __init__(self, compiled: CompiledPlan, context: Context) -> None:
        self._compiled = compiled
        self._context = context
        self.steps: dict[str, StepRun] = {}
        """Those that are made."""
        self.flows: dict[str, Flow] = {}

    def flow(self, name: str) -> Flow:
        """The value of that name."""
        found = self.flows.get(name)
        if found is None:
            found = self.flows[name] = Flow(name, self._compiled.values[name].depth, self._context.budget)
        return found

    def made_first(self) -> list[StepRun]:
        """The steps that need no other one to begin: they take nothing, or an input of the plan."""
        taking = {reader for value in self._compiled.inputs for reader in value.readers}
        return [self._make(step) for name, step in self._compiled.steps.items() if name in taking or not step.bindings]

    def made_readers(self, step: StepRun) -> list[StepRun]:
        """The steps that read what `step` gives and were not made before. To be called before anything comes: a value
        keeps what its readers have not read, and what nobody is there to read is let go."""
        steps, compiled = self.steps, self._compiled
        return [
            self._make(compiled.steps[name])
            for flow in step.targets.values()
            for name in compiled.values[flow.name].readers
            if name not in steps
        ]

    def made_all(self) -> list[StepRun]:
        """Every step, in the plan's order; those that were not made before are now."""
        return [self.steps.get(step.name) or self._make(step) for step in self._compiled.steps.values()]

    def reports(self) -> dict[str, StepReport]:
        """What is known of each step, in the plan's order."""
        steps = self.steps
        return {
            name: steps[name].report if name in steps else StepReport(name, cartridge=step.route.cartridge.name)
            for name, step in self._compiled.steps.items()
        }

    def _make(self, compiled: CompiledStep) -> StepRun:
        kind = SingleRun
        if compiled.loops:
            kind = PlainMap if is_plain(self._context, compiled) else MappedRun
        step = compiled.step
        sources = {binding.source: self.flow(binding.source) for binding in compiled.bindings}
        targets = {output: self.flow(value) for output, value in step.sides.items()}
        if step.target is not None:
            targets[""] = self.flow(step.target)
        made = self.steps[compiled.name] = kind(self._context, compiled, sources, targets)
        return made
