"""Owns the plan: steps that are wired together, from text or made in Python, and whether they fit together by name.

It does not know caps: whether a cap exists and takes what it is given is the compiler's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cartdeck.near import near_names
from cartdeck.plans.fault import Place, plan_fault
from cartdeck.plans.graph import Step, StepSettings, checked_settings
from cartdeck.plans.printing import canonical_text
from cartdeck.plans.scanner import is_name
from cartdeck.plans.syntax import Constant, Header, Setting, Statement, Wiring, Word, read_statements
from cartdeck_protocol.caps import CapUrn, MediaUrn, UrnError

_MEDIA = "media:"


@dataclass(slots=True)
class Plan:
    """A plan. Two are equal when their steps, wires, constants, settings and declared inputs are."""

    steps: dict[str, Step] = field(default_factory=dict[str, Step])
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    """The media URNs of inputs that declare one."""
    comments: dict[tuple[str, ...], list[str]] = field(default_factory=dict[tuple[str, ...], list[str]], compare=False)

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan that `text` writes down. Raises BAD_PLAN with line, column and candidates."""
        return _Assembly(*read_statements(text)).plan

    @property
    def producers(self) -> dict[str, str]:
        """Which step gives a value, by the value's name."""
        return {step.target: step.name for step in self.steps.values() if step.target is not None}

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
        return tuple(step.target for step in self.steps.values() if step.target is not None and step.target not in used)

    def to_text(self) -> str:
        """The plan in canonical form, which reads as an equal plan and prints the same again."""
        return canonical_text(self.steps, self.inputs, self.comments)

    # -- the builder

    def input(self, name: str, media: str | None = None) -> str:
        """Declare an input, with its media URN where the arguments that take it do not say enough; its name."""
        _check_word(name, "an input")
        if media is not None:
            self.inputs[name] = _media_text(Word(media, Place(1, 1)), None)
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

        Raises BAD_PLAN for a name that is taken, a text that is no cap, or an unknown setting.
        """
        target = f"{name}-out" if to == "" else to
        for word in (name, *sources, *([] if target is None else [target]), *(constants or {})):
            _check_word(word, f"the step {name}")
        step = Step(
            name=name,
            cap=_cap_text(Word(cap, Place(1, 1)), None),
            sources=sources,
            target=target,
            constants=dict(constants or {}),
            settings=checked_settings(settings),
        )
        self.add(step)
        return target or ""

    def add(self, step: Step) -> None:
        """Add a step. Raises BAD_PLAN for a name that is taken."""
        if step.name in self.steps:
            raise plan_fault(f"there are two steps named {step.name}", step.place("step"))
        self.steps[step.name] = step

    def check_names(self) -> None:
        """Raises BAD_PLAN for a plan without steps, a value that two steps give or that has the name of a step, and an
        input that nobody takes."""
        if not self.steps:
            raise plan_fault("the plan is empty: it has no step", None)
        givers: dict[str, str] = {}
        for step in self.steps.values():
            target = step.target
            if target is not None and target in givers:
                message = f"{target} is given by {givers[target]} already; a value comes from one step"
                raise plan_fault(message, step.place("target"), candidates=[f"{target}-2"])
            if target is not None:
                givers[target] = step.name
            named = [("target", target or ""), *((f"source {i}", name) for i, name in enumerate(step.sources))]
            for what, name in named:
                if name in self.steps:
                    message = f"{name} is a step, so no value can have that name"
                    raise plan_fault(message, step.place(what), candidates=_values_of(self.steps[name]))
        for name in self.inputs:
            if name in givers:
                raise plan_fault(f"{name} is declared as an input, and {givers[name]} gives it", None)
            if not any(name in step.sources for step in self.steps.values()):
                raise plan_fault(f"the input {name} is used by no step", None)


def _check_word(word: str, where: str) -> None:
    if not is_name(word):
        message = f"{where} has the name {word!r:.40}; expected a letter, then letters, digits, - and _"
        raise plan_fault(message, None)


def _values_of(step: Step) -> list[str]:
    return [] if step.target is None else [step.target]


def _cap_text(urn: Word, place: Place | None) -> str:
    """The canonical cap that a header names: a URN, or an alias alone."""
    text = urn.text if urn.text[:4].lower() == "cap:" else f"cap:{urn.text}"
    try:
        return str(CapUrn.parse(text))
    except UrnError as error:
        raise plan_fault(f"this is no cap: {error}", _inside(urn, text, error, place)) from None


def _media_text(urn: Word, place: Place | None) -> str:
    try:
        return str(MediaUrn.parse(urn.text))
    except UrnError as error:
        raise plan_fault(f"this is no media URN: {error}", _inside(urn, urn.text, error, place)) from None


def _inside(urn: Word, text: str, error: UrnError, place: Place | None) -> Place | None:
    """The place of an error inside a URN. What is quoted in it has positions of its own: there it is the URN's."""
    if place is None:
        return None
    offset = error.position - (len(text) - len(urn.text))
    return Place(place.line, place.column + offset) if error.text == text and offset > 0 else place


class _Assembly:
    """Makes the plan of statements that were read."""

    def __init__(self, statements: list[Statement], rest: list[str]) -> None:
        self.plan = Plan()
        self._headers: dict[str, Header] = {}
        self._constants: dict[str, dict[str, Constant]] = {}
        self._settings: dict[str, Setting] = {}
        self._wirings: dict[str, list[Wiring]] = {}
        for statement in statements:
            self._sort(statement)
        if not statements:
            raise plan_fault("the plan is empty: it has no statement", Place(1, 1))
        for alias, wirings in self._wirings.items():
            self._add_steps(alias, wirings)
        self._check_used()
        self.plan.check_names()
        if rest:
            self.plan.comments["end",] = rest

    def _sort(self, statement: Statement) -> None:
        alias = statement.alias
        match statement:
            case Header():
                if alias.text in self._headers:
                    first = self._headers[alias.text].alias.place
                    raise plan_fault(f"{alias.text} is declared twice, first at {first}", alias.place)
                self._headers[alias.text] = statement
            case Wiring():
                self._wirings.setdefault(alias.text, []).append(statement)
            case Constant():
                given = self._constants.setdefault(alias.text, {})
                if statement.argument.text in given:
                    first = given[statement.argument.text].argument.place
                    message = f"{alias.text}.{statement.argument.text} is given twice, first at {first}"
                    raise plan_fault(message, statement.argument.place)
                given[statement.argument.text] = statement
            case Setting():
                if alias.text in self._settings:
                    raise plan_fault(f"the settings of {alias.text} are given twice", alias.place)
                self._settings[alias.text] = statement

    def _add_steps(self, alias: str, wirings: list[Wiring]) -> None:
        """Each wiring is a step; those behind the first of one alias get a number."""
        header = self._headers.get(alias)
        first = wirings[0].alias
        is_input = header is not None and header.urn.text[: len(_MEDIA)].lower() == _MEDIA
        if header is None or is_input:
            # No header: the alias of a cap that is installed, if there is one; the compiler knows.
            urn = first
            if is_input:
                raise plan_fault(f"{alias} is an input, and no step", first.place, candidates=sorted(self._caps()))
        else:
            urn = header.urn
        cap = _cap_text(urn, urn.place)
        for number, wiring in enumerate(wirings, 1):
            name = alias if number == 1 else self._free_name(alias, number)
            self.plan.add(self._step(name, alias, cap, wiring))
            if wiring.comments:
                self.plan.comments["wiring", name] = wiring.comments
        if header is not None and header.comments:
            self.plan.comments["step", alias] = header.comments

    def _step(self, name: str, alias: str, cap: str, wiring: Wiring) -> Step:
        header, constants, setting = self._headers.get(alias), self._constants.get(alias, {}), self._settings.get(alias)
        places = {"step": wiring.alias.place, "cap": header.urn.place if header is not None else wiring.alias.place}
        places |= {f"source {number}": source.place for number, source in enumerate(wiring.sources)}
        places |= {f"constant {one}": constant.argument.place for one, constant in constants.items()}
        if wiring.target is not None:
            places["target"] = wiring.target.place
        for one, constant in constants.items():
            if constant.comments:
                self.plan.comments["constant", name, one] = constant.comments
        if setting is not None and setting.comments:
            self.plan.comments["settings", name] = setting.comments
        return Step(
            name=name,
            cap=cap,
            sources=tuple(source.text for source in wiring.sources),
            target=None if wiring.target is None else wiring.target.text,
            constants={one: constant.value for one, constant in constants.items()},
            settings=StepSettings() if setting is None else checked_settings(setting.values, setting.places),
            places=places,
        )

    def _free_name(self, alias: str, number: int) -> str:
        taken = self._headers.keys() | self._wirings.keys() | self.plan.steps.keys()
        while f"{alias}-{number}" in taken:
            number += 1
        return f"{alias}-{number}"

    def _caps(self) -> list[str]:
        return [name for name, one in self._headers.items() if one.urn.text[: len(_MEDIA)].lower() != _MEDIA]

    def _check_used(self) -> None:
        """Headers without a wire, and constants and settings of what is no step."""
        for alias, header in self._headers.items():
            if header.urn.text[: len(_MEDIA)].lower() == _MEDIA:
                self.plan.inputs[alias] = _media_text(header.urn, header.urn.place)
                if header.comments:
                    self.plan.comments["input", alias] = header.comments
                giver = self.plan.producers.get(alias)
                if giver is not None:
                    message = f"{alias} is declared as an input, and {giver} gives it"
                    raise plan_fault(message, header.alias.place, candidates=[f"{alias}-2"])
                if not any(alias in step.sources for step in self.plan.steps.values()):
                    values = [source for step in self.plan.steps.values() for source in step.sources]
                    near = near_names(alias, values)
                    raise plan_fault(f"the input {alias} is used by no step", header.alias.place, candidates=near)
            elif alias not in self._wirings:
                message = f"the step {alias} is not wired; write SOURCE -> {alias} -> TARGET (or () for none)"
                near = near_names(alias, self._wirings)
                raise plan_fault(message, header.alias.place, candidates=near)
        owned = [one for constants in self._constants.values() for one in constants.values()]
        for statement in (*owned, *self._settings.values()):
            if statement.alias.text not in self._wirings:
                near = near_names(statement.alias.text, self._wirings) or sorted(self._wirings)
                message = f"there is no step {statement.alias.text}; there are {', '.join(sorted(self._wirings))}"
                raise plan_fault(message, statement.alias.place, candidates=near)
