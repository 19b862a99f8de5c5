"""Owns the plan: steps that are wired together, from text or made in Python, and whether they fit together by name.

It does not know caps: whether a cap exists and takes what it is given is the compiler's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cartdeck.near import near_names
from cartdeck.plans.assembly import Assembly
from cartdeck.plans.fault import MOST_FAULTS, Place, earliest, plan_fault
from cartdeck.plans.graph import Step, checked_settings, producers_of, side_value
from cartdeck.plans.printing import canonical_text
from cartdeck.plans.scanner import is_name
from cartdeck.plans.syntax import Word, read_statements
from cartdeck.plans.urn_text import cap_text, media_text
from cartdeck_protocol.errors import CartdeckError


@dataclass(slots=True)
class Plan:
    """A plan. Two are equal when their steps, wires, constants, settings and declared inputs are."""

    steps: dict[str, Step] = field(default_factory=dict[str, Step])
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    """The media URNs of inputs that declare one."""
    comments: dict[tuple[str, ...], list[str]] = field(default_factory=dict[tuple[str, ...], list[str]], compare=False)

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan that `text` writes down. Raises the first fault in the text, BAD_PLAN with line, column and
        candidates."""
        draft = read_draft(text, most_faults=1)
        if draft.faults:
            raise earliest(draft.faults)
        return draft.plan

    @property
    def producers(self) -> dict[str, str]:
        """Which step gives a value, by the value's name."""
        return producers_of(self.steps)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The values that no step gives, in the order of their first use."""
        producers = self.producers
        used = [source for step in self.steps.values() for source in step.sources if source not in producers]
        return tuple(dict.fromkeys([*used, *self.inputs]))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The values that no step takes."""
        used = {source for step in self.steps.values() for source in step.sources}
        return tuple(value for step in self.steps.values() for value in step.values if value not in used)

    def to_text(self) -> str:
        """The plan in canonical form, which reads as an equal plan and prints the same again."""
        return canonical_text(self.steps, self.inputs, self.comments)

    # -- the builder

    def input(self, name: str, media: str | None = None) -> str:
        """Declare an input, with its media URN where the arguments that take it do not say enough; its name."""
        _check_word(name, "an input")
        if media is not None:
            self.inputs[name] = media_text(Word(media, Place(1, 1)), None)
        return name

    def step(
        self,
        name: str,
        cap: str,
        *sources: str,
        to: str | None = "",
        constants: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> str:
        """Add a step: a cap (URN or alias) that takes `sources` and gives the value `to`, NAME-out unless named; None
        wants nothing of it. `constants` are arguments, `settings` those of StepSettings. The value's name.

        A source may be a side output, `STEP.OUTPUT`, of a step that is there. Raises BAD_PLAN for a name that is taken,
        a text that is no cap, a side output of no step, or an unknown setting.
        """
        target = f"{name}-out" if to == "" else to
        values = [self._value(source, name) for source in sources]
        for word in (name, *([] if target is None else [target]), *(constants or {})):
            _check_word(word, f"the step {name}")
        step = Step(
            name=name,
            cap=cap_text(Word(cap, Place(1, 1)), None),
            sources=tuple(values),
            target=target,
            constants=dict(constants or {}),
            settings=checked_settings(settings),
        )
        if name in self.steps:
            raise plan_fault(f"there are two steps named {name}", None)
        self.steps[name] = step
        return target or ""

    def side(self, step: str, output: str, *, to: str | None = None) -> str:
        """Take an output of a step other than the main one, by the name that the cap gives it: as the value `to`, or
        as `STEP.OUTPUT`. The value's name. Raises BAD_PLAN for a step that is not there, or an output that was taken
        by another name."""
        giver = self.steps.get(step)
        if giver is None:
            near = near_names(step, self.steps) or list(self.steps)
            raise plan_fault(
                f"there is no step {step}; there are {', '.join(self.steps) or 'none'}", None, candidates=near
            )
        for word in (output, *([] if to is None else [to])):
            _check_word(word, f"an output of {step}")
        value = giver.sides.setdefault(output, to or side_value(step, output))
        if to is not None and value != to:
            message = f"{side_value(step, output)} is taken already as {value}; give its name when it is first taken"
            raise plan_fault(message, None, candidates=[value])
        return value

    def _value(self, source: str, step: str) -> str:
        """A source as the name of a value."""
        giver, dot, output = source.partition(".")
        if dot:
            return self.side(giver, output)
        _check_word(source, f"the step {step}")
        return source

    def check_names(self) -> None:
        """Raises BAD_PLAN for a plan without steps, a value that two steps give or that has the name of a step, and an
        input that nobody takes."""
        if not self.steps:
            raise plan_fault("the plan is empty: it has no step", None)
        faults, _ = name_faults(self.steps)
        if faults:
            raise earliest(faults)
        producers = self.producers
        for name in self.inputs:
            if name in producers:
                raise plan_fault(f"{name} is declared as an input, and {producers[name]} gives it", None)
            if not any(name in step.sources for step in self.steps.values()):
                raise plan_fault(f"the input {name} is used by no step", None)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a text says of a plan, with all that is wrong with it by itself; a plan if `faults` is empty."""

    plan: Plan
    faults: list[CartdeckError]
    doubtful: frozenset[str] = frozenset()
    """Steps and values that a fault leaves open: what else seems wrong with those may follow from it."""
    is_read: bool = True
    """Every statement could be read. Otherwise `plan` is empty."""


def read_draft(text: str, *, most_faults: int = MOST_FAULTS) -> Draft:
    """Read a text that may be wrong. Where statements cannot be read, those are its faults, so many at most."""
    reading = read_statements(text, most_faults=most_faults)
    if reading.faults:
        return Draft(Plan(), reading.faults, is_read=False)
    found = Assembly(reading.statements, reading.rest)
    faults, doubtful = name_faults(found.steps)
    plan = Plan(found.steps, found.inputs, found.comments)
    return Draft(plan, [*found.faults, *faults], frozenset(found.doubtful | doubtful))


def name_faults(steps: Mapping[str, Step]) -> tuple[list[CartdeckError], set[str]]:
    """A fault for each value that two steps give, or that has the name of a step; and the names of those values."""
    faults: list[CartdeckError] = []
    bad: set[str] = set()
    givers: dict[str, str] = {}
    for step in steps.values():
        for what, value in _given(step):
            if value in givers:
                message = f"{value} is given by {givers[value]} already; a value comes from one step"
                faults.append(plan_fault(message, step.place(what), candidates=[f"{value}-2"]))
                bad.add(value)
            givers[value] = step.name
        for what, name in (*_given(step), *((f"source {i}", name) for i, name in enumerate(step.sources))):
            if name in steps and name not in bad:
                message = f"{name} is a step, so no value can have that name"
                faults.append(plan_fault(message, step.place(what), candidates=steps[name].values))
                bad.add(name)
    return faults, bad


def _given(step: Step) -> list[tuple[str, str]]:
    """What a step gives, each with the place where it says so."""
    target = [] if step.target is None else [("target", step.target)]
    return [*target, *((f"side {output}", value) for output, value in step.sides.items())]


def _check_word(word: str, where: str) -> None:
    if not is_name(word):
        message = f"{where} has the name {word!r:.40}; expected a letter, then letters, digits, - and _"
        raise plan_fault(message, None)
