"""Owns `cartdeck config`: what the settings are, and where they come from.

It does not know what a setting steers.
"""

from typing import TYPE_CHECKING, Any, Final

import typer

from cartdeck.cli.options import AsJson

if TYPE_CHECKING:
    from cartdeck.settings import Settings

CAP: Final = "cap:models-settings"

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def config(context: typer.Context) -> None:
    """Show the settings."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("show", short_help="Show every setting as it is in force.")
def show(as_json: AsJson = False) -> None:
    """Show every setting as it is in force, as the TOML that would give it.

    What the models cartridge makes of them and of its environment stands below, as comments: it is started and asked.

    Example: cartdeck config show > config.toml
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line
    from cartdeck.settings import CONFIG_VARIABLE, config_path, load_settings, render_settings

    path, settings = config_path(), load_settings()
    in_force, reason = models_in_force(settings)
    if as_json:
        record = {"path": str(path), "is_read": path.exists(), "settings": settings.model_dump(mode="json")}
        print_text(json_line({**record, "models_in_force": in_force}))
        return
    origin = "read from" if path.exists() else "all defaults; a file to change them would be"
    print_text(f"# {origin} {path} (or what {CONFIG_VARIABLE} names)\n{render_settings(settings)}")
    print_text(f"\n# {reason}\n" if in_force is None else in_force_text(in_force))


def models_in_force(settings: "Settings") -> tuple[dict[str, Any] | None, str]:
    """What the models cartridge says is in force; None and the reason where it cannot be asked."""
    import json

    from cartdeck.cli.running import run_interruptible
    from cartdeck.engine import Engine
    from cartdeck_protocol.errors import CartdeckError

    async def work() -> dict[str, Any]:
        async with Engine(settings) as engine:
            return json.loads((await engine.run(CAP, {})).text)

    try:
        return run_interruptible(work), ""
    except CartdeckError as error:
        return None, f"What the models cartridge has in force is not known: {' '.join(error.message.split())}"


def in_force_text(values: dict[str, Any]) -> str:
    """The values as comments, so that the whole stays TOML."""
    lines = [
        ("hub", values["endpoint"] + (", offline: nothing is asked of it" if values["is_offline"] else "")),
        ("Xet", "used where the hub has it" if values["uses_xet"] else "not used"),
        ("token", "there is one" if values["has_token"] else "none"),
        ("hub's models in", values["cache_folder"]),
        ("other models in", values["folder"]),
    ]
    return "\n# In force in the models cartridge:\n" + "".join(f"#   {name:<16} {value}\n" for name, value in lines)
