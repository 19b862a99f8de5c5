"""Owns what a caller may hand a plan as an input, and how deep a sequence that is.

It does not know steps. A list is a sequence, and so is a folder: its files, by name.
"""

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cartdeck.near import near_names
from cartdeck.plans.compiling import CompiledPlan, compile_plan
from cartdeck.plans.fault import plan_fault
from cartdeck.plans.plan import Plan
from cartdeck.router import Router
from cartdeck_protocol.caps import check_value
from cartdeck_protocol.caps.argument import ArgumentDefinition, ValueKind
from cartdeck_protocol.errors import CartdeckError, Code, failure

_DEEPEST: Final = 8
_WRITTEN: Final = frozenset({ValueKind.TEXT, ValueKind.BYTES})
_AS_THEY_ARE: Final[tuple[type, ...]] = (str, bytes, bytearray, memoryview, Path)


@dataclass(frozen=True, slots=True)
class Items:
    """An iterable, also an async one, that is a sequence: each of its items is a value."""

    items: Any


@dataclass(frozen=True, slots=True)
class One:
    """A list or a folder that is one value all the same."""

    value: Any


def check_known(plan: Plan, inputs: Iterable[str]) -> None:
    """Raises BAD_ARGUMENT for an input that the plan does not have, with names that are near."""
    names = dict.fromkeys(plan.input_names)
    for name in inputs:
        if name not in names:
            near = near_names(name, names)
            known = f"its inputs are {', '.join(names)}" if names else "it has none"
            message = f"the plan has no input {name}; {known}"
            raise failure(Code.BAD_ARGUMENT, message, argument=name, details={"candidates": near or list(names)})


def check_inputs(plan: Plan, inputs: Mapping[str, Any]) -> None:
    """Raises what `check_known` raises, and MISSING_ARGUMENT for an input that is not given, or is None."""
    check_known(plan, inputs)
    names = plan.input_names
    missing = [name for name in names if inputs.get(name) is None]
    if missing:
        step = next(step for step in plan.steps.values() if missing[0] in step.sources)
        place = step.place(f"source {step.sources.index(missing[0])}")
        message = f"the input {missing[0]} is not given"
        fault = plan_fault(message, place, code=Code.MISSING_ARGUMENT, candidates=missing)
        fault.argument = missing[0]
        raise fault


def compiled_for(plan: Plan, router: Router, inputs: Mapping[str, Any]) -> CompiledPlan:
    """The plan, compiled for inputs like these. Raises what `check_inputs` and `compile_plan` raise."""
    check_inputs(plan, inputs)
    compiled = compile_plan(plan, router)
    return compiled.with_depths(router, depths_of(compiled, inputs))


def depths_of(compiled: CompiledPlan, inputs: Mapping[str, Any]) -> dict[str, int]:
    """How deep a sequence each input is, where its value says so; others are as their arguments want them.

    A list that only goes to arguments that take a JSON list is one value.
    """
    arguments: dict[str, list[ArgumentDefinition]] = {name: [] for name in inputs}
    for step in compiled.steps.values():
        for binding in step.bindings:
            if binding.source in arguments:
                arguments[binding.source].append(binding.argument)
    found: dict[str, int] = {}
    for name, value in inputs.items():
        depth = _depth(value)
        if depth is not None and not (depth and all(_takes_list(one) for one in arguments[name])):
            found[name] = depth
    return found


class EntryCheck:
    """What may be an entry of one input: what a caller of its caps could hand over. Between steps more is converted."""

    def __init__(self, compiled: CompiledPlan, name: str, value: Any) -> None:
        """`value` is the input as it was handed over: what is wrapped by its caller stands for itself."""
        self._name = name
        readers = () if isinstance(value, One) else compiled.values[name].readers
        self._arguments = [
            binding.argument
            for reader in readers
            for binding in compiled.steps[reader].bindings
            if binding.source == name and binding.argument.kind in _WRITTEN
        ]
        """Others are checked when they are sent: nothing is converted to a number."""

    def check(self, entry: Any, depth: int) -> None:
        """An entry that is a sequence itself where `depth` is above 0. Raises BAD_ARGUMENT, or INVALID_TEXT, that names
        the input."""
        if not self._arguments or isinstance(entry, _AS_THEY_ARE) or _is_coming(entry):
            return
        if isinstance(entry, list | tuple) and depth > 0:
            for one in cast("list[Any]", entry):
                self.check(one, depth - 1)
            return
        for argument in self._arguments:
            try:
                check_value(argument, entry)
            except CartdeckError as error:
                raise failure(error.code, f"the input {self._name}: {error.message}", argument=self._name) from None


def _takes_list(argument: ArgumentDefinition) -> bool:
    return not argument.is_sequence and argument.kind is ValueKind.JSON and argument.is_list


def _depth(value: Any) -> int | None:
    depth = 0
    while isinstance(value, list | tuple) and depth < _DEEPEST:
        depth += 1
        items = cast("list[Any]", value)
        if not items:
            break
        value = items[0]
    if depth:
        return depth
    if isinstance(value, Items):
        return 1
    if isinstance(value, Path):
        return int(value.expanduser().is_dir())
    if _is_coming(value):
        return None
    return 0


def entries_of(value: Any, depth: int) -> Any:
    """The entries of an input: a list of what is there, or an iterable of what comes. Raises FILE_NOT_FOUND."""
    if isinstance(value, Items | One):
        return value.items if isinstance(value, Items) else [value.value]
    if isinstance(value, list | tuple) and depth:
        return list(cast("tuple[Any]", value)) if isinstance(value, tuple) else cast("list[Any]", value)
    if isinstance(value, Path) and depth and value.expanduser().is_dir():
        return _files_in(value.expanduser())
    if _is_coming(value):
        return cast("Any", value)
    if isinstance(value, bytearray | memoryview):
        return [bytes(cast("bytes", value))]
    return [value]


def _files_in(folder: Path) -> list[Path]:
    """Raises FILE_NOT_FOUND for a folder that cannot be read."""
    try:
        return sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as error:
        raise failure(Code.FILE_NOT_FOUND, f"the folder {folder} cannot be read: {error.strerror}") from None


def _is_coming(value: Any) -> bool:
    """Whether it has to be iterated over to know what it is."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | list | tuple):
        return False
    return isinstance(value, AsyncIterable | Iterable)
