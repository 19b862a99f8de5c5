"""Owns `cartdeck chat`: a dialogue in the terminal, one line after another.

It does not know templates nor models; the cap's definition decides.
"""

import os
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cartdeck.cli import text_options as opt
from cartdeck.cli.options import CALLING
from cartdeck_protocol.errors import Code, failure

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
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="The first message.")] = None,
    system: opt.System = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="Shown with the first message; may be repeated."),
    ] = None,
    **given: Any,
) -> None:
    from cartdeck.cli.conversing import Conversation
    from cartdeck.cli.dialogue import Dialogue
    from cartdeck.cli.named_model import resolved
    from cartdeck.cli.running import taken_from

    options, catalog = taken_from(given), given.pop("catalog")
    cap, arguments = resolved(
        CAP, opt.given(**given), catalog, is_quiet=options.is_quiet, is_verbose=options.is_verbose
    )
    _check_model(arguments.get("model"))
    default = arguments.pop("system", None)  # of a catalog: the dialogue has it, and /system another
    dialogue = Dialogue(system=system or default)
    for path in image or []:
        dialogue.show(path)
    Conversation(dialogue, arguments, options, first=message, cap=cap).run()


def _check_model(spec: str | None) -> None:
    """Raises FILE_NOT_FOUND for a local path to nothing, so that it is told before a message is asked for.

    Any other spec, a home folder of nobody among them, is left to the cartridge that looks for the model.
    """
    if spec is None or not (spec.startswith(("/", "./", "../", "~")) or not {"/", ":"} & set(spec)):
        return
    path = os.path.expanduser(spec)  # noqa: PTH111 - Path's own raises for the home of nobody
    if not path.startswith("~") and not os.path.lexists(path):
        takes = "a name of the catalog, a local path, hf:…, package:… or pypi:…"
        message = f"There is no model {path}; --model takes {takes}."
        raise failure(Code.FILE_NOT_FOUND, message, argument="model")


chat.__doc__ = EXAMPLE
