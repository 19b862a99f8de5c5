"""Owns `cartdeck config`: what the settings are, and where they come from.

It does not know what a setting steers.
"""

import typer

from cartdeck.cli.options import AsJson

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Show the settings.")


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show every setting as it is in force, as the TOML that would give it.

    Example: cartdeck config show > config.toml
    """
    from cartdeck.cli.listing import print_text
    from cartdeck.cli.render import json_line
    from cartdeck.settings import CONFIG_VARIABLE, config_path, load_settings, render_settings

    path, settings = config_path(), load_settings()
    if as_json:
        print_text(
            json_line({"path": str(path), "is_read": path.exists(), "settings": settings.model_dump(mode="json")})
        )
        return
    origin = "read from" if path.exists() else "all defaults; a file to change them would be"
    print_text(f"# {origin} {path} (or what {CONFIG_VARIABLE} names)\n{render_settings(settings)}")
