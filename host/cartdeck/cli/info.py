"""Owns `cartdeck info`: what a model's file says of itself, as lines for a person or one record for a program.

It does not know model formats: a cartridge reads the file.
"""

from typing import Annotated, Any, cast

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import AsJson, Quiet, Timeout, Verbose

CAP = "cap:model-info"
LONGEST_VALUE = 100


def info(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="Which model: a path, hf:, package: or pypi:.")],
    context_size: opt.ContextSize = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say what a model's file says of itself: architecture, size, tensors, template, memory. Nothing is loaded.

    Example: cartdeck info ./model.gguf
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.model_spec import check_spec
    from cartdeck.cli.render import json_line
    from cartdeck_protocol.errors import CartdeckError

    check_spec(spec, argument="SPEC")

    async def work(ask: Ask) -> None:
        try:
            record = (await ask(CAP, {"model": spec, **opt.given(context_size=context_size)})).json()
        except CartdeckError as error:
            if error.argument == "model":
                error.argument = "SPEC"
            raise
        if as_json:
            print_text(json_line(record))
        else:
            print_rows(["", ""], rows_of(record))

    run_asking(work, timeout_s=timeout, is_quiet=quiet, is_verbose=verbose)


def rows_of(record: dict[str, Any]) -> list[list[str]]:
    """A line for each thing that is known; a record inside becomes lines of its own."""
    rows: list[list[str]] = []
    for name, value in record.items():
        if isinstance(value, dict) and value:
            inner = cast("dict[str, Any]", value)
            rows.extend([f"{name}.{key}", shown] for key, shown in rows_of(inner))
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            rows.extend([[name, _shown(name, one)] for one in items])
        elif value is not None and value != {}:
            rows.append([name, _shown(name, value)])
    return rows


def _shown(name: str, value: Any) -> str:
    from cartdeck.size import size_text

    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return ", ".join(f"{key} {_shown(key, one)}" for key, one in inner.items())
    if name.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
