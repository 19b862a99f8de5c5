"""Owns `cartdeck generate`: text from a prompt.

It knows no default, no range and no type: an option that is given is sent as it is spelt, and the cap's definition
decides.
"""

from typing import Annotated, Any

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import CALLING, WRITING

EXAMPLE = """Continue a prompt with a language model.

The text is printed as it comes. What is not given has the default that `cartdeck caps generate-text` shows.

With --json-schema or --grammar the text is held to what the file says.

\b
Example: cartdeck generate "The capital of France is" --max-tokens 16 --temperature 0"""
CAP = "cap:generate-text"


@opt.takes(opt.MODEL, opt.SAMPLING, opt.SEVERAL, opt.LOADING, opt.SHARED_OUT, CALLING, WRITING)
def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="The text to continue; - reads standard input, less one newline at its end."
        ),
    ],
    **given: Any,
) -> None:
    from cartdeck.cli.arguments import read_text
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.running import run_call, taken_from

    options, choice = taken_from(given), opt.choice_among(given)
    arguments = opt.given(**given)
    arguments["prompt"] = read_text(prompt, name="prompt")
    run_call(*resolved(CAP, arguments, choice, is_quiet=options.is_quiet, is_verbose=options.is_verbose), options)


generate.__doc__ = EXAMPLE
