"""Owns the way from statements to steps: each wiring with its header, constants, settings and side outputs.

It does not know caps, nor whether the steps fit together.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from cartdeck.near import near_names
from cartdeck.plans.fault import MOST_FAULTS, Place, plan_fault
from cartdeck.plans.graph import Step, StepSettings, checked_settings, producers_of, side_value
from cartdeck.plans.syntax import Constant, Header, Naming, Setting, Statement, Wiring, Word
from cartdeck.plans.urn_text import cap_text, is_media, media_text
from cartdeck_protocol.errors import CartdeckError


class Assembly:
    """What statements say together: `steps`, the URNs of declared `inputs`, `comments`; and `faults`, each BAD_PLAN.

    `doubtful` has the steps and values that a fault leaves open: what else seems wrong with those may follow from it.
    """

    def __init__(self, statements: Sequence[Statement], rest: list[str]) -> None:
        self.faults: list[CartdeckError] = []
        self.doubtful: set[str] = set()
        self.steps: dict[str, Step] = {}
        self.inputs: dict[str, str] = {}
        self.comments: dict[tuple[str, ...], list[str]] = {}
        self._headers: dict[str, Header] = {}
        self._constants: dict[str, dict[str, Constant]] = {}
        self._settings: dict[str, Setting] = {}
        self._wirings: dict[str, list[Wiring]] = {}
        self._namings: dict[tuple[str, str], Naming] = {}
        self._missed: dict[str, Word] = {}
        for statement in statements:
            self._sort(statement)
        if not statements:
            self.faults.append(plan_fault("the plan is empty: it has no statement", Place(1, 1)))
        for alias, wirings in self._wirings.items():
            self._add_steps(alias, wirings)
        self._name_sides()
        self._wire_sides()
        self._find_unused()
        if rest:
            self.comments["end",] = rest

    def _sort(self, statement: Statement) -> None:
        alias = statement.alias
        match statement:
            case Header():
                first = self._headers.setdefault(alias.text, statement)
                if first is not statement:
                    message = f"{alias.text} is declared twice, first at {first.alias.place}"
                    self._doubt(plan_fault(message, alias.place, candidates=[f"{alias.text}-2"]), alias.text)
            case Wiring():
                self._wirings.setdefault(alias.text, []).append(statement)
            case Naming():
                key = (alias.text, statement.output.text)
                first = self._namings.setdefault(key, statement)
                if first is not statement:
                    name, place = first.target.text, first.target.place
                    message = f"{side_value(*key)} has the name {name} already, from {place}"
                    fault = plan_fault(message, statement.target.place, candidates=[name])
                    self._doubt(fault, statement.target.text)
            case Constant():
                first = self._constants.setdefault(alias.text, {}).setdefault(statement.argument.text, statement)
                if first is not statement:
                    message = f"{alias.text}.{statement.argument.text} is given twice, first at {first.argument.place}"
                    self._doubt(plan_fault(message, statement.argument.place))
            case Setting():
                if self._settings.setdefault(alias.text, statement) is not statement:
                    self._doubt(plan_fault(f"the settings of {alias.text} are given twice", alias.place))

    def _doubt(self, fault: CartdeckError, *names: str) -> None:
        self.faults.append(fault.with_traceback(None))
        self.doubtful.update(names)

    # -- steps

    def _add_steps(self, alias: str, wirings: list[Wiring]) -> None:
        """Each wiring is a step; those behind the first of one alias get a number."""
        header = self._headers.get(alias)
        cap = self._cap(alias, wirings[0].alias, header)
        settings = self._checked_settings(alias)
        for number, wiring in enumerate(wirings, 1):
            name = alias if number == 1 else self._free_name(alias, number)
            self.steps[name] = self._step(name, wiring, cap=cap, settings=settings)
            if alias in self.doubtful:
                self.doubtful.add(name)
            self._comment(wiring.comments, "wiring", name)
        if header is not None:
            self._comment(header.comments, "step", alias)

    def _cap(self, alias: str, first: Word, header: Header | None) -> str:
        """The canonical text of the step's cap; "" where that is at fault."""
        if header is not None and is_media(header.urn):
            message = f"{alias} is an input, and no step"
            self._doubt(plan_fault(message, first.place, candidates=sorted(self._caps())), alias)
            return ""
        # No header: the alias of a cap that is installed, if there is one; the compiler knows.
        urn = first if header is None else header.urn
        try:
            return cap_text(urn, urn.place)
        except CartdeckError as fault:
            self._doubt(fault, alias)
            return ""

    def _checked_settings(self, alias: str) -> StepSettings:
        """The settings of a step; each that is at fault is left out."""
        setting, good = self._settings.get(alias), dict[str, Any]()
        if setting is None:
            return StepSettings()
        for name, value in setting.values.items():
            try:
                checked_settings({name: value}, setting.places)
                good[name] = value
            except CartdeckError as fault:
                self._doubt(fault)
        return StepSettings(**good)

    def _step(self, name: str, wiring: Wiring, *, cap: str, settings: StepSettings) -> Step:
        alias = wiring.alias.text
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
            settings=settings,
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
            step = self.steps.get(alias)
            if step is None:
                self._miss(naming.alias, naming.target.text)
                continue
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
                giver = self.steps.get(alias)
                if giver is None:
                    self._miss(Word(alias, place), source)
                    found.append(source)
                    continue
                giver.places.setdefault(f"side {output}", place)
                found.append(giver.sides.setdefault(output, source))
            step.sources = tuple(found)

    def _miss(self, alias: Word, *values: str) -> None:
        """There is no step of that name; it is told where it is first named."""
        self.doubtful.update(values)
        first = self._missed.get(alias.text)
        if first is None or alias.place < first.place:
            self._missed[alias.text] = alias

    def _tell_missed(self) -> None:
        # Of the others it is told that their headers stand without a wire.
        told = (one for one in self._missed.values() if (h := self._headers.get(one.text)) is None or is_media(h.urn))
        for alias in sorted(told, key=lambda one: one.place)[:MOST_FAULTS]:
            # A step that is near may be the one that is meant, and lacks what this statement says.
            self._doubt(_no_step(alias, self.steps), *near_names(alias.text, self.steps))

    # -- what is of no use

    def _find_unused(self) -> None:
        """Headers without a wire, and constants and settings of what is no step."""
        producers = producers_of(self.steps)
        taken = {source for step in self.steps.values() for source in step.sources}
        inputs = {alias: header for alias, header in self._headers.items() if is_media(header.urn)}
        for header in inputs.values():
            self._check_input(header, producers)
        unused = inputs.keys() - taken - producers.keys() - self._wirings.keys()
        unwired = self._headers.keys() - inputs.keys() - self._wirings.keys()
        self._tell_unused(self._first(unused), taken, producers.keys())
        self._tell_unwired(self._first(unwired))
        owned = [one for constants in self._constants.values() for one in constants.values()]
        for statement in (*owned, *self._settings.values()):
            if statement.alias.text not in self._wirings:
                self._miss(statement.alias)
        self._tell_missed()

    def _check_input(self, header: Header, producers: dict[str, str]) -> None:
        alias = header.alias.text
        self._comment(header.comments, "input", alias)
        try:
            self.inputs[alias] = media_text(header.urn, header.urn.place)
        except CartdeckError as fault:
            self._doubt(fault, alias)
        if alias in producers:
            message = f"{alias} is declared as an input, and {producers[alias]} gives it"
            self._doubt(plan_fault(message, header.alias.place, candidates=[f"{alias}-2"]), alias)

    def _first(self, aliases: Collection[str]) -> list[Header]:
        """The headers that come first in the text. To look for what is near to each of very many takes very long."""
        return sorted((self._headers[alias] for alias in aliases), key=lambda one: one.alias.place)[:MOST_FAULTS]

    def _tell_unused(self, headers: Iterable[Header], taken: set[str], given: Collection[str]) -> None:
        for header in headers:
            alias = header.alias.text
            near = near_names(alias, taken)
            known = near or sorted(taken.difference(given))
            self._doubt(
                plan_fault(f"the input {alias} is used by no step", header.alias.place, candidates=known), *near
            )

    def _tell_unwired(self, headers: Iterable[Header]) -> None:
        for header in headers:
            alias = header.alias.text
            message = f"the step {alias} is not wired; write SOURCE -> {alias} -> TARGET (or () for none)"
            near = near_names(alias, self._wirings)
            unheaded = [name for name in near if name not in self._headers]  # one of these may be what it is for
            known = near or sorted(self._wirings)
            self._doubt(plan_fault(message, header.alias.place, candidates=known), *unheaded)


def _no_step(alias: Word, steps: Iterable[str]) -> CartdeckError:
    known = sorted(steps)
    near = near_names(alias.text, known) or known
    return plan_fault(f"there is no step {alias.text}; there are {', '.join(known)}", alias.place, candidates=near)
