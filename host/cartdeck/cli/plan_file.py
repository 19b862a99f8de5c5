"""Owns what the commands about plans have in common: the file, what is set and given on the command line, the caps.

It does not know how a plan is run or shown.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cartdeck.cli.arguments import example_of, parse_value
from cartdeck.discovery import discover
from cartdeck.near import near_names
from cartdeck.plans.compiling import CompiledPlan, Value, all_faults, compile_plan
from cartdeck.plans.inputs import check_known, depths_of
from cartdeck.plans.plan import Draft, Plan, read_draft
from cartdeck.router import Router
from cartdeck.settings import load_settings
from cartdeck_protocol.caps import ValueKind
from cartdeck_protocol.caps.argument import kind_of
from cartdeck_protocol.caps.item_text import items_of_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

_FORMS: Final = {
    "": "text", ".txt": "text", ".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".json": "json",
}  # fmt: skip


def read_text(file: Path) -> str:
    """The text of a plan file, or of standard input for `-`. Raises FILE_NOT_FOUND, BAD_ARGUMENT or INVALID_TEXT."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except FileNotFoundError:
        raise failure(Code.FILE_NOT_FOUND, f"There is no plan {file}.", argument="FILE") from None
    except OSError as error:
        raise failure(
            Code.BAD_ARGUMENT, f"The plan {file} cannot be read: {error.strerror}.", argument="FILE"
        ) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise failure(Code.INVALID_TEXT, f"{file} is no UTF-8 text: byte {error.start} is wrong.") from None


def read_plan(file: Path, settings: Sequence[str]) -> Plan:
    """The plan in `file`, with constants replaced as `--set ALIAS.ARG=VALUE` says. Of all that is wrong with it, its
    caps too, the first in the text is raised."""
    draft = read_draft(read_text(file))
    if draft.faults:
        raise _faults_here(draft, settings)[0]
    return _with_settings(draft.plan, settings)


def examined_file(
    file: Path, settings: Sequence[str], inputs: Sequence[str]
) -> tuple[CompiledPlan | None, list[CartdeckError]]:
    """The plan in `file`, compiled as it is given; or all that is wrong with it, in the order of the text."""
    draft = read_draft(read_text(file))
    if draft.faults:
        return None, _faults_here(draft, settings)
    given = parse_inputs(inputs)
    _with_settings(draft.plan, settings)
    try:
        return compile_here(draft.plan, given), []
    except CartdeckError as error:
        return None, all_faults(draft, router_here()) or [error]


def _faults_here(draft: Draft, settings: Sequence[str]) -> list[CartdeckError]:
    """All that is wrong with a plan that is at fault by itself. What sets nothing in it may be right in the plan that
    is meant."""
    for text in settings:
        with contextlib.suppress(CartdeckError):
            _with_settings(draft.plan, [text])
    return all_faults(draft, router_here())


def _with_settings(plan: Plan, settings: Sequence[str]) -> Plan:
    for text in settings:
        left, separator, value = text.partition("=")
        alias, dot, argument = left.strip().partition(".")
        if not (separator and dot and alias and argument):
            message = f"'{text}' sets nothing; expected ALIAS.ARGUMENT=VALUE."
            raise failure(Code.BAD_ARGUMENT, message, argument="--set")
        step = plan.steps.get(alias)
        if step is None:
            near = near_names(alias, plan.steps)
            known = ", ".join(near or list(plan.steps)[:10])
            raise failure(Code.BAD_ARGUMENT, f"The plan has no step {alias}; there are: {known}.", argument="--set")
        step.constants[argument] = parse_value(value, name=f"{alias}.{argument}")
    return plan


def parse_inputs(pairs: Sequence[str]) -> dict[str, Any]:
    """The inputs that `--input` gave: text, a Path for @FILE or @FOLDER, a stream for @-; several of a name are a list.

    Raises BAD_ARGUMENT and FILE_NOT_FOUND.
    """
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.strip():
            message = f"'{pair}' is no input; expected NAME=VALUE, NAME=@FILE or NAME=@FOLDER."
            raise failure(Code.BAD_ARGUMENT, message, argument="--input")
        folder = Path(text[1:]).expanduser() if text.startswith("@") and text[1:2] not in ("@", "-", "") else None
        is_folder = folder is not None and folder.is_dir()
        found.setdefault(name.strip(), []).append(folder if is_folder else parse_value(text, name=name.strip()))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def drawing_form(out: Path | None) -> str:
    """The form of a drawing that the file's ending says: `svg`, `mermaid`, `json` or `text`. Raises BAD_ARGUMENT."""
    ending = "" if out is None else out.suffix.lower()
    form = _FORMS.get(ending)
    if form is None:
        message = f"A plan cannot be drawn as {ending}; expected a file that ends in {_listed(_FORMS)}."
        raise failure(Code.BAD_ARGUMENT, message + " Or say the form: --svg, --mermaid or --json.", argument="--out")
    return form


def _listed(forms: Mapping[str, str]) -> str:
    endings = [one for one in forms if one]
    return f"{', '.join(endings[:-1])} or {endings[-1]}"


def check_given(plan: Plan, inputs: dict[str, Any]) -> None:
    """Raises MISSING_ARGUMENT for inputs that are not given, with what to write; before that BAD_ARGUMENT for one that
    the plan does not have, which may be a missing one by a wrong name."""
    check_known(plan, inputs)
    missing = [name for name in plan.input_names if name not in inputs]
    if not missing:
        return
    values = {value.name: value for value in compile_here(plan, inputs).inputs}
    known = ", ".join(f"{name} ({values[name].media})" for name in missing)
    example = " ".join(f"--input {name}={_example(values[name])}" for name in missing)
    message = f"The plan needs {known}. For instance: {example}"
    raise failure(Code.MISSING_ARGUMENT, message, argument="--input", details={"candidates": missing})


def read_lists(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs; a text that is a JSON list is its items, where all that take the input take sequences, as with
    `cartdeck call --arg`. Raises BAD_ARGUMENT for a wrong item."""
    listed = {name for name, value in inputs.items() if isinstance(value, str) and value.lstrip().startswith("[")}
    read = dict(inputs)
    steps = compile_here(plan, read).steps.values() if listed else ()
    for name in listed:
        takers = [one.argument for step in steps for one in step.bindings if one.source == name]
        if not all(one.is_sequence for one in takers):
            continue
        items = items_of_text(takers[0], inputs[name])
        if not any(isinstance(one, list) for one in items):  # else a JSON value that is a list itself
            read[name] = items
    return read


def _example(value: Value) -> str:
    kind = kind_of(value.media)
    return "@FOLDER" if value.depth and kind is not ValueKind.TEXT else example_of(kind)


def router_here() -> Router:
    """The caps that are installed."""
    settings = load_settings()
    found = discover(settings)
    return Router(found.cartridges, settings.prefer, unread=[one.origin for one in found.broken])


def compile_here(plan: Plan, inputs: dict[str, Any]) -> CompiledPlan:
    """The plan with the caps that are installed; inputs that are given say whether they are sequences."""
    router = router_here()
    compiled = compile_plan(plan, router)
    given = {name: value for name, value in inputs.items() if name in plan.input_names}
    return compiled.with_depths(router, depths_of(compiled, given))


def plan_record(compiled: CompiledPlan) -> dict[str, Any]:
    """What is known of a plan before it runs, for `--json`."""
    return {
        "inputs": [{"name": v.name, "media": str(v.media), "depth": v.depth} for v in compiled.inputs],
        "steps": [
            {
                "name": step.name,
                "cap": step.route.urn,
                "cartridge": step.route.cartridge.name,
                "sources": [{"name": b.source, "argument": b.argument.name} for b in step.bindings],
                "target": step.step.target,
                "sides": dict(sorted(step.step.sides.items())),
                "loops": step.loops,
            }
            for step in compiled.steps.values()
        ],
        "outputs": [{"name": v.name, "media": str(v.media), "depth": v.depth} for v in compiled.outputs],
    }
