"""Owns `cartdeck rm`: a model that is kept here goes, and what somebody else needs stays and is told.

It does not know where files lie, nor what a spec means: the models cartridge does.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cartdeck.cli.models import LIST, Spec
from cartdeck.cli.named_source import CatalogFile
from cartdeck.cli.options import AsJson, Verbose
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck.cli.asking import Ask
    from cartdeck.cli.named_source import Source

DELETE: Final = "cap:delete-model"


def remove(
    spec: Spec,
    catalog: CatalogFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Remove a model that is kept here, and the content that no other needs. Asks first.

    Of a name of the catalog its files go, but for those that another name there is loaded from; the name stays, and
    `cartdeck catalog remove` takes it out.

    Example: cartdeck rm hf:owner/name:Q8_0 --yes
    """
    from cartdeck.cli.asking import Ask, run_asking
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.named_source import Source, sources_of
    from cartdeck.cli.render import json_line

    named = sources_of(spec, catalog)
    sources = [Source(spec)] if named is None else named
    goes = [one for one in sources if named is None or (one.pin is not None and not one.needed_by)]
    stays = [one for one in sources if one not in goes]

    async def work(ask: Ask) -> None:
        here = await _kept(ask, goes)
        if here and not yes and not (sys.stdin.isatty() and os.isatty(2)):
            message = "Without a terminal nobody can be asked; add --yes to remove the model unasked."
            raise failure(Code.BAD_ARGUMENT, message, argument="--yes")
        would = joined([one for _, one in here])
        files = await _files(ask, would["removed"]) if here else []
        if here and not yes and not await is_agreed(removal_text({**would, "files": files})):
            print_text("Nothing was removed.\n")
            return
        record = joined([(await ask(DELETE, {"model": one.spec})).json() for one, _ in here]) | {"files": files}
        if as_json and named is not None:
            told = [{"spec": one.spec, "needed_by": list(one.needed_by)} for one in stays]
            record = {"name": spec, **record, "stays": told}
        seen = "".join(f"{path}\n" for path in files) if yes else ""  # else the question had them
        text = seen + removed_text(record) + "".join(map(_why_it_stays, stays))
        print_text(json_line(record) if as_json else text)

    run_asking(work, is_quiet=not verbose, is_verbose=verbose)


async def _kept(ask: "Ask", sources: "Sequence[Source]") -> "list[tuple[Source, dict[str, Any]]]":
    """Those that are here, with the record of what would be removed, but for those that go with another. Raises
    MODEL_NOT_FOUND where none is."""
    found: list[tuple[Source, dict[str, Any]]] = []
    missing: CartdeckError | None = None
    for one in sources:
        try:
            found.append((one, (await ask(DELETE, {"model": one.spec, "dry-run": True})).json()))
        except CartdeckError as error:
            if error.code is not Code.MODEL_NOT_FOUND:
                raise
            missing = missing or error
    if missing is not None and not found:
        raise missing
    kept: list[tuple[Source, dict[str, Any]]] = []
    told: set[str] = set()
    for one in sorted(found, key=lambda one: -len(one[1]["specs"])):  # a whole repository before one file of it
        if not told.issuperset(specs := one[1]["specs"]):
            kept.append(one)
            told.update(specs)
    return kept


async def _files(ask: "Ask", removed: Sequence[str]) -> list[str]:
    """The files of what goes: of a folder those that models have in it, or the folder where it has none of them."""
    listed = sorted(file["path"] for model in (await ask(LIST, {})).items for file in model["files"])
    found: list[str] = []
    for path in removed:
        found += [file for file in listed if Path(file).is_relative_to(path)] or [path]
    return found


def joined(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several records of the cap as one."""
    return {
        "specs": [spec for one in records for spec in one["specs"]],
        "removed": [path for one in records for path in one["removed"]],
        "freed_bytes": sum(one["freed_bytes"] for one in records),
    }


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
    """The question before what the dry run `record` tells is removed; `files` are those of it."""
    from cartdeck.size import size_text

    removed = (
        "".join(f"  {path}\n" for path in record["files"]) or "  its name; its content is needed by another model\n"
    )
    return f"{', '.join(record['specs'])}\n{removed}Remove it and free {size_text(record['freed_bytes'])}? [y/N] "


def removed_text(record: dict[str, Any]) -> str:
    """What was removed, and that content stays where another model needs it."""
    from cartdeck.size import size_text

    if not record["specs"]:
        return "Nothing was removed.\n"
    if not record["freed_bytes"]:
        return f"{', '.join(record['specs'])} is no longer here; its content stays, another model needs it.\n"
    return f"{size_text(record['freed_bytes'])} were freed.\n"


def _why_it_stays(source: "Source") -> str:
    if source.pin is None:
        return f"{source.spec} stays: it was not fetched.\n"
    return f"{source.spec} stays: the catalog has it for {', '.join(source.needed_by)} too.\n"
