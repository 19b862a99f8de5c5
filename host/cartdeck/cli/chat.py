"""Owns `cartdeck chat`: a dialogue in the terminal, one line after another.

It does not know templates nor models; the cap's definition decides.
"""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import CALLING

AnswersAsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print each answer as one JSON record.")]
CAP = "cap:chat"
EXAMPLE = """Talk with a language model.

Each line is a message; answers come as they are made. Ctrl-C stops an answer and keeps the dialogue, Ctrl-D ends it.
/image FILE shows an image, /system TEXT sets what the model is told beforehand, /help lists what else there is. With
--json each answer is one record in a line of its own.

Example: cartdeck chat --system "You are a helpful assistant." """


@opt.takes(
    opt.MODEL, opt.DIALOGUE, opt.SAMPLING, opt.LOADING, opt.SHARED_OUT,
    {**CALLING, "as_json": AnswersAsJson},
)  # fmt: skip
def chat(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The first message; - reads it from standard input.")
    ] = None,
    system: opt.System = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="Shown with the first message; may be repeated."),
    ] = None,
    **given: Any,
) -> None:
    from cartdeck.cli.arguments import read_text
    from cartdeck.cli.conversing import Conversation
    from cartdeck.cli.dialogue import Dialogue
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.running import taken_from

    options, choice = taken_from(given), opt.choice_among(given)
    cap, arguments = resolved(CAP, opt.given(**given), choice, is_quiet=options.is_quiet, is_verbose=options.is_verbose)
    default = arguments.pop("system", None)  # of a catalog: the dialogue has it, and /system another
    dialogue = Dialogue(system=system or default)
    for path in image or []:
        dialogue.show(path)
    first = None if message is None else read_text(message, name="message")
    Conversation(dialogue, arguments, options, first=first, cap=cap).run()


chat.__doc__ = EXAMPLE
