"""Owns `cartdeck plan`: checking, formatting, drawing, running plans, and finding chains of caps.

It does not know the notation, nor how a plan is carried out.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cartdeck.cli.options import AsJson, Force, Quiet, Verbose

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

PlanFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The plan; - reads standard input.")]
Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=VALUE|@FILE|@FOLDER",
        help="An input; several of one name, and a folder, are a sequence.",
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="ALIAS.ARG=VALUE", help="Another constant for an argument of a step."),
]


class Form(StrEnum):
    """How a plan is drawn."""

    TEXT = "text"
    SVG = "svg"
    MERMAID = "mermaid"
    JSON = "json"


@app.callback()
def plan(context: typer.Context) -> None:
    """Plans: caps that are wired together, as text in a file."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(short_help="Compile a plan, and say what it is.")
def check(file: PlanFile, inputs: Inputs = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Compile a plan with the caps that are installed, and say what it is, or all that is wrong with it. Nothing is
    started.

    Example: cartdeck plan check summary.plan
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.plan_faults import tell_faults
    from cartdeck.cli.plan_file import examined_file, plan_record
    from cartdeck.cli.render import json_line
    from cartdeck.plans.drawing import kind_shown

    compiled, faults = examined_file(file, settings or [], inputs or [])
    if compiled is None:
        raise typer.Exit(tell_faults(faults, as_json=as_json))
    if as_json:
        print_text(json_line(plan_record(compiled)))
        return
    count = len(compiled.steps)
    needs = ", ".join(f"{one.name} ({kind_shown(one)})" for one in compiled.inputs) or "nothing"
    gives = ", ".join(f"{one.name} ({kind_shown(one)})" for one in compiled.outputs) or "nothing"
    print_text(f"{count} step{'s' * (count != 1)}; takes {needs}; gives {gives}\n")


@app.command(short_help="Print a plan in its canonical form.")
def fmt(
    file: PlanFile,
    write: Annotated[bool, typer.Option("--write", "-w", help="Change the file instead of printing.")] = False,
    is_check: Annotated[bool, typer.Option("--check", help="Print nothing; fail if the file would change.")] = False,
) -> None:
    """Print a plan in its canonical form: what is printed prints as itself.

    Example: cartdeck plan fmt summary.plan --write
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.output import FileOutput
    from cartdeck.cli.plan_file import read_text
    from cartdeck.plans.plan import Plan
    from cartdeck_protocol.errors import Code, failure

    before = read_text(file)
    text = Plan.parse(before).to_text()
    if is_check:
        if text != before:
            message = f"{file} is not in canonical form; `cartdeck plan fmt --write {file}` changes it."
            raise failure(Code.BAD_PLAN, message)
    elif write and str(file) != "-":
        if text != before:
            with FileOutput(file, force=True) as output:
                output.write(text.encode())
                output.commit()
    else:
        print_text(text)


@app.command()
def show(
    file: PlanFile,
    inputs: Inputs = None,
    settings: Settings = None,
    is_svg: Annotated[bool, typer.Option("--svg", help="As an SVG document.")] = False,
    is_mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it to this file: .svg, .mmd, .json or .txt.")
    ] = None,
    form: Annotated[Form | None, typer.Option("--format", metavar="FORM", help="text, svg, mermaid or json.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw a plan: with rails for the terminal, as SVG, or as Mermaid.

    Example: cartdeck plan show summary.plan --out summary.svg
    """
    from cartdeck.cli.output import open_output
    from cartdeck.cli.plan_file import compile_here, drawing_form, parse_inputs, plan_record, read_plan
    from cartdeck.cli.render import json_line
    from cartdeck.plans.drawing import mermaid, terminal_lines
    from cartdeck.plans.svg import to_svg

    flagged = "json" if as_json else "svg" if is_svg else "mermaid" if is_mermaid else form
    form_drawn = drawing_form(out) if flagged is None else flagged
    with open_output(out, force=force) as output:
        compiled = compile_here(read_plan(file, settings or []), parse_inputs(inputs or []))
        match form_drawn:
            case "json":
                text = json_line(plan_record(compiled))
            case "svg":
                text = to_svg(compiled)
            case "mermaid":
                text = mermaid(compiled)
            case _:
                text = "\n".join(terminal_lines(compiled)) + "\n"
        output.write(text.encode())
        output.commit()


@app.command()
def run(
    file: PlanFile,
    inputs: Inputs = None,
    settings: Settings = None,
    out: Annotated[
        list[str] | None, typer.Option("--out", metavar="NAME=FILE", help="Write this output to a file; repeatable.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Keep what steps give here; a later run does only what changed."),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar="fail|absent", help="What a failing step does, if it does not say.")
    ] = "fail",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a plan, with a live view of its steps.

    A single output goes to standard output as it comes (items of text or JSON as JSON lines), several at the end as a
    JSON line each; --out NAME=FILE writes one to a file.

    \b
    Example: cartdeck plan run summary.plan --input speech=@talk.wav --out summary=summary.txt
    """
    from cartdeck.cli.plan_file import parse_inputs, read_plan
    from cartdeck.cli.plan_run import RunOptions, run_plan_here

    options = RunOptions(
        outs=tuple(out or []), state=state, on_error=on_error, force=force,
        as_json=as_json, is_quiet=quiet, is_verbose=verbose,
    )  # fmt: skip
    run_plan_here(read_plan(file, settings or []), parse_inputs(inputs or []), options)


@app.command(short_help="List the chains of caps between two kinds of data.")
def find(
    source: Annotated[str, typer.Option("--from", metavar="MEDIA", help="What there is, such as media:image.")],
    target: Annotated[str, typer.Option("--to", metavar="MEDIA", help="What is wanted, such as media:embedding.")],
    most: Annotated[int, typer.Option("--most", metavar="N", help="List so many chains at most.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """List the chains of installed caps that lead from one kind of data to another, best first. Nothing is run.

    Behind a chain stands what has to be set in its steps, such as a model where there is no default.

    Example: cartdeck plan find --from media:image --to media:embedding
    """
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line
    from cartdeck.discovery import discover
    from cartdeck.plans.path_search import find_chains
    from cartdeck.router import Router
    from cartdeck.settings import load_settings
    from cartdeck_protocol.caps import MediaUrn, UrnError
    from cartdeck_protocol.errors import Code, failure

    try:
        ends = MediaUrn.parse(source), MediaUrn.parse(target)
    except UrnError as error:
        raise failure(Code.BAD_ARGUMENT, f"this is no kind of data: {error}") from None
    loaded = load_settings()
    router = Router(discover(loaded).cartridges, loaded.prefer)
    chains = find_chains(router.routes, *ends, most=most)
    if as_json:
        records = [
            {
                "caps": [one.urn for one in c.routes],
                "cost": c.cost,
                "needs": c.needs,
                "plan": c.to_plan().to_text(),
            }
            for c in chains
        ]
        print_text(json_line({"chains": records}))
        return
    if not chains:
        message = f"No chain of installed caps leads from {ends[0]} to {ends[1]}."
        raise failure(Code.NO_SUCH_CAP, message)
    rows = [
        [
            " -> ".join(one.definition.alias for one in c.routes),
            " -> ".join(one.cartridge.name for one in c.routes),
            ", ".join(c.needs),
        ]
        for c in chains
    ]
    print_rows(["chain", "cartridges", "to be set"], rows)
