"""Owns the way from statements to steps: each wiring with its header, constants, settings and side outputs.

It does not know caps, nor whether the steps fit together.
"""

from collections.abc import Iterable, Iterator, Sequence

from cartdeck.near import near_names
from cartdeck.plans.fault import Place, plan_fault
from cartdeck.plans.graph import Step, StepSettings, checked_settings, producers_of, side_value
from cartdeck.plans.syntax import Constant, Header, Naming, Setting, Statement, Wiring, Word
from cartdeck.plans.urn_text import cap_text, is_media, media_text
from cartdeck_protocol.errors import CartdeckError


class Assembly:
    """What statements say together: `steps`, the URNs of declared `inputs`, `comments`. Raises BAD_PLAN.

    `unused` has a fault for each statement that is of no use; the steps are whole without those.
    """

    def __init__(self, statements: Sequence[Statement], rest: list[str]) -> None:
        self.steps: dict[str, Step] = {}
        self.inputs: dict[str, str] = {}
        self.comments: dict[tuple[str, ...], list[str]] = {}
        self._headers: dict[str, Header] = {}
        self._constants: dict[str, dict[str, Constant]] = {}
        self._settings: dict[str, Setting] = {}
        self._wirings: dict[str, list[Wiring]] = {}
        self._namings: dict[tuple[str, str], Naming] = {}
        for statement in statements:
            self._sort(statement)
        if not statements:
            raise plan_fault("the plan is empty: it has no statement", Place(1, 1))
        for alias, wirings in self._wirings.items():
            self._add_steps(alias, wirings)
        self._name_sides()
        self._wire_sides()
        self.unused = list(self._find_unused())
        if rest:
            self.comments["end",] = rest

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
            case Naming():
                key = (alias.text, statement.output.text)
                if key in self._namings:
                    first = self._namings[key].target
                    message = f"{side_value(*key)} has the name {first.text} already, from {first.place}"
                    raise plan_fault(message, statement.target.place, candidates=[first.text])
                self._namings[key] = statement
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

    # -- steps

    def _add_steps(self, alias: str, wirings: list[Wiring]) -> None:
        """Each wiring is a step; those behind the first of one alias get a number."""
        header = self._headers.get(alias)
        first = wirings[0].alias
        if header is None:
            # No header: the alias of a cap that is installed, if there is one; the compiler knows.
            urn = first
        elif is_media(header.urn):
            raise plan_fault(f"{alias} is an input, and no step", first.place, candidates=sorted(self._caps()))
        else:
            urn = header.urn
        cap = cap_text(urn, urn.place)
        for number, wiring in enumerate(wirings, 1):
            name = alias if number == 1 else self._free_name(alias, number)
            self.steps[name] = self._step(name, alias, cap, wiring)
            self._comment(wiring.comments, "wiring", name)
        if header is not None:
            self._comment(header.comments, "step", alias)

    def _step(self, name: str, alias: str, cap: str, wiring: Wiring) -> Step:
        header, constants, setting = self._headers.get(alias), self._constants.get(alias, {}), self._settings.get(alias)
        places = {"step": wiring.alias.place, "cap": header.urn.place if header is not None else wiring.alias.place}
        places |= {f"source {number}": source.place for number, source in enumerate(wiring.sources)}
        places |= {f"constant {one}": constant.argument.place for one, constant in constants.items()}
        if wiring.target is not None:
            places["target"] = wiring.target.place
        for one, constant in constants.items():
            self._comment(constant.comments, "constant", name, one)
        if setting is not None:
            self._comment(setting.comments, "settings", name)
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
        taken = self._headers.keys() | self._wirings.keys() | self.steps.keys()
        while f"{alias}-{number}" in taken:
            number += 1
        return f"{alias}-{number}"

    def _caps(self) -> list[str]:
        return [name for name, one in self._headers.items() if not is_media(one.urn)]

    def _comment(self, lines: list[str], *key: str) -> None:
        if lines:
            self.comments[key] = lines

    # -- side outputs

    def _name_sides(self) -> None:
        for (alias, output), naming in self._namings.items():
            step = self._step_named(alias, naming.alias.place)
            step.sides[output] = naming.target.text
            step.places[f"side {output}"] = naming.target.place
            self._comment(naming.comments, "naming", alias, output)

    def _wire_sides(self) -> None:
        """Sources that are side outputs, by the names that those have as values."""
        for step in self.steps.values():
            found: list[str] = []
            for number, source in enumerate(step.sources):
                alias, dot, output = source.partition(".")
                if not dot:
                    found.append(source)
                    continue
                place = step.places[f"source {number}"]
                giver = self._step_named(alias, place)
                giver.places.setdefault(f"side {output}", place)
                found.append(giver.sides.setdefault(output, source))
            step.sources = tuple(found)

    def _step_named(self, alias: str, place: Place) -> Step:
        step = self.steps.get(alias)
        if step is None:
            raise _no_step(Word(alias, place), self.steps)
        return step

    # -- what is of no use

    def _find_unused(self) -> Iterator[CartdeckError]:
        """Headers without a wire, and constants and settings of what is no step. Raises BAD_PLAN for an input's URN."""
        producers = producers_of(self.steps)
        for alias, header in self._headers.items():
            if is_media(header.urn):
                yield from self._check_input(header, producers)
            elif alias not in self._wirings:
                message = f"the step {alias} is not wired; write SOURCE -> {alias} -> TARGET (or () for none)"
                near = near_names(alias, self._wirings)
                yield plan_fault(message, header.alias.place, candidates=near)
        owned = [one for constants in self._constants.values() for one in constants.values()]
        for statement in (*owned, *self._settings.values()):
            if statement.alias.text not in self._wirings:
                yield _no_step(statement.alias, self._wirings)

    def _check_input(self, header: Header, producers: dict[str, str]) -> Iterator[CartdeckError]:
        alias = header.alias.text
        self.inputs[alias] = media_text(header.urn, header.urn.place)
        self._comment(header.comments, "input", alias)
        if alias in producers:
            message = f"{alias} is declared as an input, and {producers[alias]} gives it"
            yield plan_fault(message, header.alias.place, candidates=[f"{alias}-2"])
        if not any(alias in step.sources for step in self.steps.values()):
            near = near_names(alias, [source for step in self.steps.values() for source in step.sources])
            yield plan_fault(f"the input {alias} is used by no step", header.alias.place, candidates=near)


def _no_step(alias: Word, steps: Iterable[str]) -> CartdeckError:
    known = sorted(steps)
    near = near_names(alias.text, known) or known
    return plan_fault(f"there is no step {alias.text}; there are {', '.join(known)}", alias.place, candidates=near)
