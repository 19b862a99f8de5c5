"""Owns the compiler: a plan and the caps that are there become steps with their cartridges, arguments and loops.

It does not know processes; nothing is started, and every fault is found that can be found before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck.near import near_names
from cartdeck.plans.fault import at_place, earliest, plan_fault
from cartdeck.plans.graph import Step
from cartdeck.plans.matching import Source, described, is_like_text, match, titled
from cartdeck.plans.order import find_cycle, in_order
from cartdeck.plans.plan import Plan
from cartdeck.router import Route, Router, parse_cap
from cartdeck_protocol.caps import (
    ArgumentDefinition,
    CapDefinition,
    MediaUrn,
    OutputDefinition,
    check_value,
    encode_value,
)
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
    UNKNOWN_ARGUMENT, BAD_ARGUMENT or MISSING_ARGUMENT, with line and column in `details` where there are some.
    """
    plan.check_names()
    producers = plan.producers
    needs = {name: [producers[s] for s in step.sources if s in producers] for name, step in plan.steps.items()}
    cycle = find_cycle(needs)
    if cycle is not None:
        path = " -> ".join(cycle if len(cycle) <= _SHOWN_IN_CYCLE else [*cycle[:5], "…", *cycle[-5:]])
        place = plan.steps[cycle[0]].place("step")
        raise plan_fault(f"steps need each other: {path}", place, code=Code.PLAN_CYCLE, details={"path": cycle})
    return _Compiler(plan, router, in_order(needs), depths or {}).compiled()


class _Compiler:
    def __init__(self, plan: Plan, router: Router, order: list[str], depths: Mapping[str, int]) -> None:
        self._plan = plan
        self._router = router
        self._order = order
        self._depths = dict(depths)
        self._routes: dict[tuple[str, str], Route] = {}
        self._media: dict[str, MediaUrn] = {name: MediaUrn.parse(text) for name, text in plan.inputs.items()}
        self._matched: dict[str, list[ArgumentDefinition]] = {}

    def compiled(self) -> CompiledPlan:
        plan, producers = self._plan, self._plan.producers
        routes = self._match_all()
        readers: dict[str, list[str]] = {}
        for name in self._order:
            for source in dict.fromkeys(plan.steps[name].sources):
                readers.setdefault(source, []).append(name)
        for name in plan.input_names:
            self._agree(name, readers[name])
        steps = {name: self._loops(plan.steps[name], routes[name]) for name in self._order}
        names = [*plan.input_names, *(value for step in plan.steps.values() for value in step.values)]
        values = {
            name: Value(name, producers.get(name), tuple(readers.get(name, ())), self._media[name], self._depths[name])
            for name in names
        }
        return CompiledPlan(plan, steps, values)

    # -- caps and constants

    def _match_all(self) -> dict[str, Route]:
        """The route of each step. Of several faults the first in the text is raised; the sources of a step behind one
        that has a fault are not matched, since what they are is not known."""
        routes: dict[str, Route] = {}
        faults: list[CartdeckError] = []
        unknown: set[str] = set()
        for name in self._order:
            step = self._plan.steps[name]
            try:
                if unknown.isdisjoint(step.sources):
                    routes[name] = self._match(step)
                    continue
                self._check_constants(step, self._route(step).definition)
            except CartdeckError as error:
                faults.append(error)
            unknown.update(step.values)
        if faults:
            raise earliest(faults).with_traceback(None) from None
        return routes

    def _match(self, step: Step) -> Route:
        route = self._route(step)
        definition = route.definition
        self._check_constants(step, definition)
        sources = [Source(name, self._media.get(name)) for name in step.sources]
        matched = self._matched[step.name] = match(step, definition, sources)
        given = {one.name for one in matched} | {definition.argument(name).name for name in step.constants}
        missing = [one for one in definition.arguments.values() if one.required and one.name not in given]
        if missing:
            message = f"{titled(step, definition)} needs {missing[0].name} ({missing[0].media}): wire a source"
            message += f" to it, or write {step.name}.{missing[0].name} = VALUE"
            raise plan_fault(message, step.place("step"), code=Code.MISSING_ARGUMENT, candidates=described(missing))
        if step.target is not None:
            if definition.main_output is None:
                message = f"{titled(step, definition)} gives nothing; write () for {step.target}"
                raise plan_fault(message, step.place("target"), candidates=["()"])
            self._media[step.target] = self._media_given(definition, matched, sources)
        for output, value in step.sides.items():
            self._media[value] = self._side(step, definition, output).media
        return route

    def _side(self, step: Step, definition: CapDefinition, output: str) -> OutputDefinition:
        found = definition.outputs.get(output)
        if found is None or found is definition.main_output:
            known = sorted(name for name, one in definition.outputs.items() if one is not definition.main_output)
            there = f"there are {', '.join(known)}" if known else "it has none besides the main one"
            message = f"{titled(step, definition)} has no output {output}; {there}"
            raise plan_fault(message, step.place(f"side {output}"), candidates=near_names(output, known) or known)
        return found

    def _media_given(
        self, definition: CapDefinition, matched: list[ArgumentDefinition], sources: list[Source]
    ) -> MediaUrn:
        output = definition.urn.output
        if definition.urn.effect == "none":  # it gives back what it was given
            for argument, source in zip(matched, sources, strict=True):
                if argument.is_main and source.media is not None and source.media.conforms_to(output):
                    return source.media
        return output

    def _route(self, step: Step) -> Route:
        model = step.constants.get("model")
        key = (step.cap, str(model))
        route = self._routes.get(key)
        if route is None:
            try:
                route = self._router.route(parse_cap(step.cap), step.constants)
            except CartdeckError as error:
                found = self._by_alias(step) if error.code is Code.NO_SUCH_CAP else None
                if found is None:
                    raise at_place(error, step.place("cap"), step=step.name) from None
                route = found
            self._routes[key] = route
        return route

    def _by_alias(self, step: Step) -> Route | None:
        """The cap with an alias that its URN does not hold, such as identity."""
        alias = step.cap.removeprefix("cap:")
        return next((one for one in self._router.routes if one.definition.alias == alias), None)

    def _check_constants(self, step: Step, definition: CapDefinition) -> None:
        for name, value in step.constants.items():
            try:
                argument = definition.argument(name)
                if isinstance(value, str | bytes | int | float | dict | list):
                    _check_constant(argument, value)
            except CartdeckError as error:
                raise at_place(error, step.place(f"constant {name}"), step=step.name) from None

    # -- inputs

    def _agree(self, name: str, readers: list[str]) -> None:
        """What an input is, from all that take it; and how deep a sequence."""
        steps = self._plan.steps
        taken = [
            (reader, number, self._matched[reader][number])
            for reader in readers
            for number, source in enumerate(steps[reader].sources)
            if source == name
        ]
        self._depths.setdefault(name, int(all(argument.is_sequence for _, _, argument in taken)))
        if name in self._media:
            return
        first, media = taken[0][0], taken[0][2].media
        for reader, number, argument in taken[1:]:
            other = argument.media
            if not media.is_comparable(other) and not is_like_text(media, other):
                message = f"{name} is {media} for {first}, and {other} for {reader}, and nothing is both"
                place = steps[reader].place(f"source {number}")
                raise plan_fault(message, place, candidates=[str(media), str(other)])
            if other.conforms_to(media):
                first, media = reader, other
        self._media[name] = media

    # -- loops

    def _loops(self, step: Step, route: Route) -> CompiledStep:
        matched = self._matched[step.name]
        bindings: list[Binding] = []
        for source, argument in zip(step.sources, matched, strict=True):
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
            media=None if output is None else self._media.get(step.target or "", _ANYTHING),
            depth=depth,
        )


def _check_constant(argument: ArgumentDefinition, value: Any) -> None:
    if argument.is_sequence:
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            check_value(argument, item)
    else:
        encode_value(argument, value)
