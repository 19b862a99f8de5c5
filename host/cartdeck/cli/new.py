"""Owns `cartdeck new`: the first files of a cartridge.

It does not know what is in them.
"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


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

    place = (folder or Path(name)).expanduser()
    paths = new_cartridge(name, cap=cap, language=language, folder=place)
    print_text("".join(f"{place / path}\n" for path in paths))
    after = (
        f"pip install -e {place}"
        if language == "python"
        else f"npm install --prefix {place} && cartdeck install {place}"
    )
    typer.echo(f"Next: {after}, then read {place / 'README.md'}", err=True)
