"""Owns the compiler: a plan and the caps that are there become steps with their cartridges, arguments and loops.

It does not know processes; nothing is started, and every fault is found that can be found before.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cartdeck.plans.fault import earliest, in_text_order, plan_fault
from cartdeck.plans.fitting import Fitting
from cartdeck.plans.graph import Step
from cartdeck.plans.order import find_cycles, in_order
from cartdeck.plans.plan import Draft, Plan
from cartdeck.router import Route, Router
from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition, MediaUrn
from cartdeck_protocol.errors import CartdeckError, Code

_ANYTHING: Final = MediaUrn.parse("media:")
_SHOWN_IN_CYCLE: Final = 12


@dataclass(frozen=True, slots=True)
class Binding:
    """One source on its way into one argument. It is taken apart `loops` times: an item for each call."""

    source: str
    argument: ArgumentDefinition
    loops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A step that can be run. `loops` is how deep it is mapped: 0 is one call, 1 one for each item."""

    step: Step
    route: Route
    bindings: tuple[Binding, ...]
    loops: int
    media: MediaUrn | None
    """What it gives; None for nothing."""
    depth: int
    """How deep a sequence its result is: 0 is a value, 1 a sequence, 2 a sequence of sequences."""

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def definition(self) -> CapDefinition:
        return self.route.definition


@dataclass(frozen=True, slots=True)
class Value:
    """A value that flows: an input or a step's result."""

    name: str
    producer: str | None
    readers: tuple[str, ...]
    media: MediaUrn
    depth: int


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """Steps in an order in which they could run, and the values between them."""

    plan: Plan
    steps: dict[str, CompiledStep]
    values: dict[str, Value]

    def with_depths(self, router: Router, depths: Mapping[str, int]) -> "CompiledPlan":
        """The plan for inputs that are sequences as deep as `depths` says: itself, where that is what it is for."""
        if all(self.values[name].depth == depth for name, depth in depths.items()):
            return self
        return compile_plan(self.plan, router, depths=depths)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.values[name] for name in self.plan.input_names)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.values[name] for name in self.plan.output_names)


def compile_plan(plan: Plan, router: Router, *, depths: Mapping[str, int] | None = None) -> CompiledPlan:
    """Resolve the caps, match sources to arguments, derive the loops.

    `depths` says of inputs how deep a sequence they are; one that is not named is a sequence where all that take it
    take sequences, else a value. Raises BAD_PLAN, PLAN_CYCLE, NO_SUCH_CAP, AMBIGUOUS_CAP, CARTRIDGE_UNAVAILABLE,
    UNKNOWN_ARGUMENT, BAD_ARGUMENT or MISSING_ARGUMENT, with line and column in `details` where there are some: of
    several faults the first in the text.
    """
    plan.check_names()
    order, cycles = _ordered(plan, doubtful=())
    fitting = _fitted(plan, router, order=order, cycles=cycles, doubtful=())
    if fitting.faults:
        raise earliest(fitting.faults).with_traceback(None)
    return _Looping(plan, fitting, order=order, depths=depths or {}).compiled()


def all_faults(draft: Draft, router: Router) -> list[CartdeckError]:
    """All that is wrong with a plan and its caps, in the order of the text. What only follows from another fault is not
    told."""
    if not draft.is_read:
        return in_text_order(draft.faults)
    order, cycles = _ordered(draft.plan, doubtful=draft.doubtful)
    fitting = _fitted(draft.plan, router, order=order, cycles=cycles, doubtful=draft.doubtful)
    return in_text_order([*draft.faults, *fitting.faults])


def _ordered(plan: Plan, *, doubtful: Collection[str]) -> tuple[list[str], list[list[str]]]:
    """The steps in an order in which they could run, those on cycles first; and the cycles."""
    givers = {value: giver for value, giver in plan.producers.items() if value not in doubtful}
    needs = {name: [givers[s] for s in step.sources if s in givers] for name, step in plan.steps.items()}
    cycles = list(find_cycles(needs))
    stuck = dict.fromkeys(name for cycle in cycles for name in cycle)
    needs = {name: [one for one in needed if one not in stuck] for name, needed in needs.items() if name not in stuck}
    return [*stuck, *in_order(needs)], cycles


def _fitted(
    plan: Plan, router: Router, *, order: list[str], cycles: list[list[str]], doubtful: Collection[str]
) -> Fitting:
    on_cycles = {value for cycle in cycles for name in cycle for value in plan.steps[name].values}
    fitting = Fitting(plan, router, doubtful={*doubtful, *on_cycles})
    fitting.fit_all(order)
    fitting.faults += [_cycle_fault(plan, cycle) for cycle in cycles]
    return fitting


def _cycle_fault(plan: Plan, cycle: list[str]) -> CartdeckError:
    path = " -> ".join(cycle if len(cycle) <= _SHOWN_IN_CYCLE else [*cycle[:5], "…", *cycle[-5:]])
    place = plan.steps[cycle[0]].place("step")
    message, candidates = f"steps need each other: {path}", cycle[1 : _SHOWN_IN_CYCLE + 1]
    return plan_fault(message, place, code=Code.PLAN_CYCLE, candidates=candidates, details={"path": cycle})


class _Looping:
    """How deep a sequence each value is, and so how often each step is called."""

    def __init__(self, plan: Plan, fitting: Fitting, *, order: list[str], depths: Mapping[str, int]) -> None:
        self._plan = plan
        self._fitting = fitting
        self._order = order
        self._depths = dict(depths)

    def compiled(self) -> CompiledPlan:
        plan, fitting = self._plan, self._fitting
        producers, media = plan.producers, fitting.media
        taken: dict[str, list[ArgumentDefinition]] = {}
        readers: dict[str, dict[str, None]] = {}
        for name in self._order:
            for source, argument in zip(plan.steps[name].sources, fitting.matched[name], strict=True):
                readers.setdefault(source, {})[name] = None
                taken.setdefault(source, []).append(argument)
        for name in plan.input_names:
            self._depths.setdefault(name, int(all(one.is_sequence for one in taken[name])))
        steps = {name: self._step(plan.steps[name], fitting.routes[name]) for name in self._order}
        names = [*plan.input_names, *(value for step in plan.steps.values() for value in step.values)]
        values = {
            name: Value(name, producers.get(name), tuple(readers.get(name, ())), media[name], self._depths[name])
            for name in names
        }
        return CompiledPlan(plan, steps, values)

    def _step(self, step: Step, route: Route) -> CompiledStep:
        bindings: list[Binding] = []
        for source, argument in zip(step.sources, self._fitting.matched[step.name], strict=True):
            depth = self._depths[source]
            loops = max(0, depth - 1) if argument.is_sequence else depth
            bindings.append(Binding(source, argument, loops))
        loops = max((one.loops for one in bindings), default=0)
        output = route.definition.main_output
        depth = loops + int(output is not None and output.is_sequence)
        if step.target is not None:
            self._depths[step.target] = depth
        for name, value in step.sides.items():
            self._depths[value] = loops + int(route.definition.outputs[name].is_sequence)
        return CompiledStep(
            step=step,
            route=route,
            bindings=tuple(bindings),
            loops=loops,
            media=None if output is None else self._fitting.media.get(step.target or "", _ANYTHING),
            depth=depth,
        )
