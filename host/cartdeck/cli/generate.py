"""Owns `cartdeck generate`: text from a prompt.

It knows no default, no range and no type: an option that is given is sent as it is spelt, and the cap's definition
decides.
"""

from typing import Annotated, Any

import typer

from cartdeck.cli.options import AsJson, Force, Out, Quiet, Timeout, Verbose

EXAMPLE = """Continue a prompt with a language model.

The text is printed as it comes. What is not given has the default that `cartdeck caps generate-text` shows.

Example: cartdeck generate "The capital of France is" --max-tokens 16 --temperature 0"""
CAP = "cap:generate-text"


def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="The text to continue; - reads standard input, less one newline at its end."
        ),
    ],
    model: Annotated[str | None, typer.Option(metavar="SPEC", help="Which model: a path, package: or pypi:.")] = None,
    max_tokens: Annotated[str | None, typer.Option(metavar="INTEGER", help="Stop after so many tokens.")] = None,
    temperature: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="0 takes the likeliest token; more is more varied.")
    ] = None,
    top_k: Annotated[str | None, typer.Option(metavar="INTEGER", help="Choose among so many likeliest tokens.")] = None,
    top_p: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Choose among tokens that hold this much probability.")
    ] = None,
    min_p: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Leave out tokens below this part of the likeliest.")
    ] = None,
    repeat_penalty: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Above 1, repeating becomes less likely.")
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="INTEGER", help="The same seed gives the same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")
    ] = None,
    context_size: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Tokens that the model keeps in view.")
    ] = None,
    threads: Annotated[str | None, typer.Option(metavar="INTEGER", help="Threads to compute with.")] = None,
    gpu_layers: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Layers to put on the GPU; -1 for all.")
    ] = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from cartdeck.cli.arguments import read_text
    from cartdeck.cli.running import CallOptions, run_call

    arguments: dict[str, Any] = {
        "prompt": read_text(prompt, name="prompt"),
        "model": model,
        "max-tokens": max_tokens,
        "temperature": temperature,
        "top-k": top_k,
        "top-p": top_p,
        "min-p": min_p,
        "repeat-penalty": repeat_penalty,
        "seed": seed,
        "stop": stop,
        "context-size": context_size,
        "threads": threads,
        "gpu-layers": gpu_layers,
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    run_call(
        CAP,
        given,
        CallOptions(timeout_s=timeout, as_json=as_json, out=out, force=force, is_quiet=quiet, is_verbose=verbose),
    )


generate.__doc__ = EXAMPLE
