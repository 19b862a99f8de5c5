"""Owns what a plan's steps are once their caps are known: cartridges, arguments of sources, media of what they give;
and every fault of that.

It does not know loops. A fault is told of what is known for certain: what seems wrong behind another fault, and may be
right once that is mended, is not told.
"""

from collections.abc import Iterable
from typing import Any, cast

from cartdeck.near import near_names
from cartdeck.plans.fault import at_place, plan_fault
from cartdeck.plans.graph import Step
from cartdeck.plans.matching import Source, described, is_like_text, match, misfits, titled
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


class Fitting:
    """The `routes` of steps, the arguments `matched` to their sources, the `media` of values; and the `faults`, in no
    order. Of a plan without faults all are there."""

    def __init__(self, plan: Plan, router: Router, *, doubtful: Iterable[str] = ()) -> None:
        """`doubtful` are steps and values of which something is left open by other faults."""
        self.routes: dict[str, Route] = {}
        self.matched: dict[str, list[ArgumentDefinition]] = {}
        self.media: dict[str, MediaUrn] = {name: MediaUrn.parse(text) for name, text in plan.inputs.items()}
        self.faults: list[CartdeckError] = []
        self._plan = plan
        self._router = router
        self._doubtful = set(doubtful)
        self._routes: dict[tuple[str, str], Route] = {}

    def fit_all(self, order: Iterable[str]) -> None:
        """Fit the steps, each behind those whose results it takes, then the inputs."""
        readers: dict[str, list[str]] = {}
        for name in order:
            step = self._plan.steps[name]
            self._fit(step)
            for source in dict.fromkeys(step.sources):
                readers.setdefault(source, []).append(name)
        for name in self._plan.input_names:
            if name not in self._doubtful and name not in self.media:
                self._agree(name, readers[name])

    def _fit(self, step: Step) -> None:
        route = None if step.name in self._doubtful else self._route(step)
        if route is None:
            self._doubtful.update(step.values)
            return
        definition = route.definition
        is_named = self._check_constants(step, definition)
        self._add_sides(step, definition)
        if step.target is not None and definition.main_output is None:
            message = f"{titled(step, definition)} gives nothing; write () for {step.target}"
            self._tell(plan_fault(message, step.place("target"), candidates=["()"]), step.target)
        sources = [Source(name, self.media.get(name)) for name in step.sources]
        matched = self._match(step, definition, sources) if is_named else None
        if matched is not None:
            self.routes[step.name], self.matched[step.name] = route, matched
            if all(one.name != "model" for one in matched):
                self._check_default(step, route)
        if step.target is None or step.target in self._doubtful:
            return
        if matched is None and definition.urn.effect == "none":  # what it gives is what it was given
            self._doubtful.add(step.target)
        else:
            self.media[step.target] = _media_given(definition, matched or [], sources)

    def _check_default(self, step: Step, route: Route) -> None:
        try:
            self._router.check_default(step.cap, route, step.constants)
        except CartdeckError as lacking:
            self._tell(at_place(lacking, step.place("cap"), step=step.name))

    def _tell(self, fault: CartdeckError, *names: str) -> None:
        self.faults.append(fault.with_traceback(None))
        self._doubtful.update(names)

    def _match(self, step: Step, definition: CapDefinition, sources: list[Source]) -> list[ArgumentDefinition] | None:
        """The argument for each source; None where that is at fault, or not known."""
        if not self._doubtful.isdisjoint(step.sources):
            self.faults += misfits(step, definition, sources, unknown=self._doubtful)
            return None
        try:
            matched = match(step, definition, sources)
        except CartdeckError as fault:
            self.faults += misfits(step, definition, sources, unknown=()) or [fault.with_traceback(None)]
            return None
        given = {one.name for one in matched} | {definition.argument(name).name for name in step.constants}
        missing = [one for one in definition.arguments.values() if one.required and one.name not in given]
        if missing:
            message = f"{titled(step, definition)} needs {missing[0].name} ({missing[0].media}): wire a source"
            message += f" to it, or write {step.name}.{missing[0].name} = VALUE"
            self._tell(
                plan_fault(message, step.place("step"), code=Code.MISSING_ARGUMENT, candidates=described(missing))
            )
        return matched

    def _add_sides(self, step: Step, definition: CapDefinition) -> None:
        for output, value in step.sides.items():
            try:
                self.media[value] = _side(step, definition, output).media
            except CartdeckError as fault:
                self._tell(fault, value)

    def _route(self, step: Step) -> Route | None:
        model = step.constants.get("model")
        key = (step.cap, str(model))
        route = self._routes.get(key)
        if route is None:
            try:
                route = self._router.route(parse_cap(step.cap), step.constants)
            except CartdeckError as error:
                found = self._by_alias(step) if error.code is Code.NO_SUCH_CAP else None
                if found is None:
                    known = self._aliases() if error.code is Code.NO_SUCH_CAP else ()
                    self._tell(at_place(error, step.place("cap"), step=step.name, candidates=known))
                    return None
                route = found
            self._routes[key] = route
        return route

    def _aliases(self) -> list[str]:
        return sorted({route.definition.alias for route in self._router.routes})

    def _by_alias(self, step: Step) -> Route | None:
        """The cap with an alias that its URN does not hold, such as identity."""
        alias = step.cap.removeprefix("cap:")
        return next((one for one in self._router.routes if one.definition.alias == alias), None)

    def _check_constants(self, step: Step, definition: CapDefinition) -> bool:
        """Whether all constants are of arguments that the cap has; their values may be at fault."""
        is_named = True
        for name, value in step.constants.items():
            try:
                argument = definition.argument(name)
                if isinstance(value, str | bytes | int | float | dict | list):
                    _check_constant(argument, value)
            except CartdeckError as error:
                is_named = is_named and error.code is not Code.UNKNOWN_ARGUMENT
                self._tell(at_place(error, step.place(f"constant {name}"), step=step.name))
        return is_named

    def _agree(self, name: str, readers: list[str]) -> None:
        """What an input is, from all that take it."""
        steps = self._plan.steps
        taken = [
            (reader, number, self.matched[reader][number])
            for reader in readers
            for number, source in enumerate(steps[reader].sources)
            if source == name and reader in self.matched
        ]
        if not taken:
            return
        first, media = taken[0][0], taken[0][2].media
        for reader, number, argument in taken[1:]:
            other = argument.media
            if not media.is_comparable(other) and not is_like_text(media, other):
                message = f"{name} is {media} for {first}, and {other} for {reader}, and nothing is both"
                place = steps[reader].place(f"source {number}")
                self._tell(plan_fault(message, place, candidates=[str(media), str(other)]))
                return
            if other.conforms_to(media):
                first, media = reader, other
        self.media[name] = media


def _side(step: Step, definition: CapDefinition, output: str) -> OutputDefinition:
    found = definition.outputs.get(output)
    if found is None or found is definition.main_output:
        known = sorted(name for name, one in definition.outputs.items() if one is not definition.main_output)
        there = f"there are {', '.join(known)}" if known else "it has none besides the main one"
        message = f"{titled(step, definition)} has no output {output}; {there}"
        raise plan_fault(message, step.place(f"side {output}"), candidates=near_names(output, known) or known)
    return found


def _media_given(definition: CapDefinition, matched: list[ArgumentDefinition], sources: list[Source]) -> MediaUrn:
    output = definition.urn.output
    if definition.urn.effect == "none":  # it gives back what it was given
        for argument, source in zip(matched, sources, strict=True):
            if argument.is_main and source.media is not None and source.media.conforms_to(output):
                return source.media
    return output


def _check_constant(argument: ArgumentDefinition, value: Any) -> None:
    if argument.is_sequence:
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            check_value(argument, item)
    else:
        encode_value(argument, value)
