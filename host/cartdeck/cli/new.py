"""Owns `cartdeck new`: the first files of a cartridge.

It does not know what is in them.
"""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cartdeck_protocol.errors import Code, failure


class _Kinds(TyperGroup):
    """What can be begun; a name in its place is told where it belongs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from cartdeck.near import near_names

        name = args[0]
        if not name.startswith("-") and name not in self.commands and not near_names(name, self.commands):
            words = shlex.join(["cartdeck", "new", "cartridge", *args])
            message = f"{name!r} is nothing that can be begun; a cartridge of that name is: `{words}`."
            raise failure(Code.BAD_ARGUMENT, message)
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Kinds, rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def new(context: typer.Context) -> None:
    """Begin something of your own."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("cartridge", short_help="Write a small cartridge that works.")
def cartridge(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits, hyphens.")],
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="URN", help="What it serves, such as 'cap:shout;in=…;out=…'; text to text if left out."
        ),
    ] = None,
    language: Annotated[
        str, typer.Option("--language", metavar="python|node", help="What it is written in.")
    ] = "python",
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="PATH", help="Where to write it; ./NAME if left out.")
    ] = None,
) -> None:
    """Write a small cartridge that works: one cap, one handler, a test. It installs, and keeps the rules, as it is.

    Example: cartdeck new cartridge shout && pip install -e ./shout && cartdeck call shout --arg text=hello
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.scaffold.new_cartridge import new_cartridge

    _check_free(name)
    place = (folder or Path(name)).expanduser()
    paths = new_cartridge(name, cap=cap, language=language, folder=place)
    print_text("".join(f"{place / path}\n" for path in paths))
    after = (
        f"pip install -e {place}"
        if language == "python"
        else f"npm install --prefix {place} && cartdeck install {place}"
    )
    typer.echo(f"Next: {after}, then read {place / 'README.md'}", err=True)


def _check_free(name: str) -> None:
    """Raises BAD_ARGUMENT for the name of a cartridge that is here: of two with one name, one is never found."""
    from cartdeck.discovery import discover
    from cartdeck.settings import load_settings

    for one in discover(load_settings()).cartridges:
        if one.name == name:
            message = f"A cartridge named {name} is here already, from {one.origin}; choose another name, as my-{name}."
            raise failure(Code.BAD_ARGUMENT, message, argument="NAME")
