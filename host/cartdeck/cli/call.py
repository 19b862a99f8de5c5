"""Owns `cartdeck call`: any cap, with its arguments by name.

It does not know which caps there are, nor what their arguments mean.
"""

from typing import Annotated

import typer

from cartdeck.cli.options import AsJson, Force, Out, Quiet, Timeout, Verbose


def call(
    cap: Annotated[str, typer.Argument(metavar="CAP", help="A cap's URN, or its alias as `cartdeck caps` lists it.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="NAME=VALUE|NAME=@FILE",
            help="An argument; @- reads standard input, @@ stands for one @. Several of one name, or a JSON list, make "
            "a sequence.",
        ),
    ] = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.arguments import parse_arguments
    from cartdeck.cli.running import CallOptions, run_call

    run_call(
        cap,
        parse_arguments(arg or []),
        CallOptions(
            timeout_s=timeout,
            as_json=as_json,
            out=out,
            force=force,
            is_quiet=quiet,
            is_verbose=verbose,
            spells_items=True,
        ),
    )


call.__doc__ = """Call any cap.

The main output goes to standard output as it comes, items of a sequence as JSON lines; --json prints all outputs.

Example: cartdeck call model-info --arg model=./model.gguf
"""
