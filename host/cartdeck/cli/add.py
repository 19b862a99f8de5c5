"""Owns `cartdeck add`, `update` and `rollback`: models of the catalog that come from a hub's repository.

It does not know the steps; those are the jobs'.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from cartdeck.cli.catalog import File, ModelName
from cartdeck.cli.options import AsJson, Quiet

Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="This branch, tag or commit of it; else main.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Fetch nothing and write nothing: say what would be taken.")]


def add(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository of a hub.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The model's name; else the repository's.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="This file of it, or this quantization, as Q8_0.")
    ] = None,
    revision: Revision = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="gguf|torch", help="What is to run it; else the lighter one.")
    ] = None,
    projector: Annotated[
        bool, typer.Option("--projector/--no-projector", help="With the projector (mmproj) that gives it eyes.")
    ] = True,
    catalog: File = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Add a model of a hub to the catalog: chosen for this machine, fetched, verified, and tried.

    It is in the catalog only once it has answered. What broke off goes on where it was when the same is asked again.

    Example: cartdeck add owner/name --name small
    """
    from cartdeck.cli.catalog import load_editing
    from cartdeck.cli.job_view import run_job

    load_editing()
    from cartdeck.adding.add import AddRequest, add_job
    from cartdeck.catalog.catalog_file import catalog_path

    asked = AddRequest(
        repository=repository, name=name, file=file, revision=revision, backend=backend, takes_projector=projector,
        is_dry=dry_run,
    )  # fmt: skip
    path = catalog or catalog_path()
    result = run_job(lambda engine: add_job(engine, path, asked), as_json=as_json, is_quiet=quiet)
    if as_json:
        _print_end(result)
    elif dry_run:
        _print_plan(result)
    else:
        _print(f"{result['name']} is in {result['catalog']}, and has answered\n")


def update(
    name: ModelName,
    revision: Revision = None,
    catalog: File = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Move a model of the catalog to the newer weights of its repository, once they have answered.

    Example: cartdeck update small
    """
    from cartdeck.cli.catalog import load_editing
    from cartdeck.cli.job_view import run_job

    load_editing()
    from cartdeck.adding.update import UpdateRequest, update_job
    from cartdeck.catalog.catalog_file import catalog_path

    asked = UpdateRequest(name=name, revision=revision, is_dry=dry_run)
    path = catalog or catalog_path()
    result = run_job(lambda engine: update_job(engine, path, asked), as_json=as_json, is_quiet=quiet)
    if as_json:
        _print_end(result)
    elif not result["is_newer"]:
        _print(f"{result['text']}\n")
    elif dry_run:
        _print(f"{result['name']} would move from {result['from']} to {result['source']}\n")
    else:
        _print(f"{result['name']} is of {result['source']} now\n")


def rollback(name: ModelName, catalog: File = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Give a model of the catalog the weights that it had before its last update.

    Example: cartdeck rollback small
    """
    from cartdeck.cli.catalog import load_editing
    from cartdeck.cli.job_view import run_job

    load_editing()
    from cartdeck.adding.update import rollback_job
    from cartdeck.catalog.catalog_file import catalog_path

    path: Path = catalog or catalog_path()
    result = run_job(lambda engine: rollback_job(engine, path, name), as_json=as_json, is_quiet=quiet)
    if as_json:
        _print_end(result)
    else:
        _print(f"{result['name']} is of {result['source']} again\n")


def _print_plan(result: dict[str, Any]) -> None:
    from cartdeck.cli.listing import print_rows
    from cartdeck.size import size_text

    candidates = next(step["candidates"] for step in result["steps"] if step["step"] == "plan")
    rows = [
        [
            one["path"],
            "yes" if one["is_taken"] else "no",
            one["architecture"] or "-",
            one["quantization"] or "-",
            size_text(one["size_bytes"]),
            size_text(one["memory_bytes"]),
            one["why"],
        ]
        for one in candidates
    ]
    print_rows(["file", "taken", "architecture", "type", "size", "memory", "why"], rows)


def _print_end(result: dict[str, Any]) -> None:
    from cartdeck.cli.render import json_line

    _print(json_line({"event": "end", **result}))


def _print(text: str) -> None:
    from cartdeck.cli.listing import print_text

    print_text(text)
