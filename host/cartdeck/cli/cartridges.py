"""Owns `cartdeck cartridges`: which cartridges are there, and why one cannot be started.

It starts none of them: manifests, their requirements and what was installed say it all.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cartdeck.cli.options import AsJson

if TYPE_CHECKING:
    from cartdeck.discovery import BrokenCartridge, Cartridge
    from cartdeck_protocol.errors import CartdeckError

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def cartridges(context: typer.Context, as_json: AsJson = False) -> None:
    """List the cartridges, what unavailable ones lack, and which copy was changed since it was installed.

    Example: cartdeck cartridges
    """
    if context.invoked_subcommand is not None:
        return
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line
    from cartdeck.discovery import discover
    from cartdeck.settings import load_settings

    found = discover(load_settings())
    if as_json:
        records = [cartridge_record(one) for one in found.cartridges]
        broken = [broken_record(one) for one in found.broken]
        passed = [{**cartridge_record(one.cartridge), "reason": one.reason} for one in found.passed_over]
        print_text(json_line({"cartridges": records, "passed_over": passed, "broken": broken}))
        return
    rows = [
        [one.name, one.version, state(one), ", ".join(cap.alias for cap in one.manifest.caps), one.origin]
        for one in found.cartridges
    ]
    rows += [
        [one.cartridge.name, one.cartridge.version, f"not used: {one.reason}", "", one.cartridge.origin]
        for one in found.passed_over
    ]
    rows += [["?", "", f"broken: {one.error}", "", one.origin] for one in found.broken]
    print_rows(["cartridge", "version", "state", "caps", "comes from"], rows)


@app.command("reset", short_help="Let quarantined cartridges start again.")
def reset(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The cartridge; all without a name.", show_default=False)
    ] = None,
) -> None:
    """Let quarantined cartridges start again, in every engine of yours that runs.

    An engine stops starting a cartridge that failed several times in a row. When the cause is mended, this makes it
    forget those failures, within a second.

    Example: cartdeck cartridges reset gguf
    """
    from cartdeck.discovery import discover
    from cartdeck.pool.reset_mark import mark_reset, marks_folder
    from cartdeck.settings import load_settings
    from cartdeck_protocol.errors import Code, failure

    known = [one.name for one in discover(load_settings()).cartridges]
    if name is not None and name not in known:
        message = f"There is no cartridge {name!r}; there are {', '.join(known) or 'none'}."
        raise failure(Code.BAD_ARGUMENT, message, argument="NAME")
    try:
        mark_reset(name)
    except OSError as error:
        message = f"The mark in {marks_folder()} cannot be written: {error.strerror}."
        raise failure(Code.INSUFFICIENT_STORAGE, message) from None


@app.command("use", short_help="Choose between installed versions of a cartridge.")
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cartridge.")],
    version: Annotated[
        str, typer.Argument(metavar="VERSION|newest", help="The version; `newest` leaves it to their order.")
    ],
) -> None:
    """Choose between the versions of a cartridge that `cartdeck install --isolated` brought.

    Engines that run go on with what they have.

    Example: cartdeck cartridges use shout 1.0.0
    """
    from cartdeck.installing.lock_file import read_lock
    from cartdeck.installing.registration import pin
    from cartdeck.settings import load_settings
    from cartdeck_protocol.errors import Code, failure

    for folder in load_settings().cartridge_folders:
        if name in read_lock(folder).versions:
            pin(folder, name, version)
            return
    message = f"No version of {name!r} was installed by `cartdeck install --isolated`."
    raise failure(Code.BAD_ARGUMENT, message, argument="NAME")


def state(cartridge: "Cartridge") -> str:
    if not cartridge.is_available:
        return f"unavailable: lacks {cartridge.missing_text}"
    changed = change_of(cartridge)
    return "available" if changed is None else f"changed since it was installed, will not start. {changed.remedy}"


def change_of(cartridge: "Cartridge") -> "CartdeckError | None":
    """What will keep an installed copy from starting: it is not what was installed."""
    from cartdeck_protocol.errors import CartdeckError

    try:
        cartridge.verify()
    except CartdeckError as error:
        return error
    return None


def cartridge_record(cartridge: "Cartridge") -> dict[str, Any]:
    manifest, changed = cartridge.manifest, change_of(cartridge)
    return {
        "name": cartridge.name,
        "version": cartridge.version,
        "title": manifest.title,
        "is_available": cartridge.is_available and changed is None,
        "changed": None if changed is None else changed.to_wire(),
        "missing": [{"module": need.module, "install": need.install} for need in cartridge.missing],
        "caps": [str(cap.urn) for cap in manifest.caps],
        "origin": cartridge.origin,
        "command": list(cartridge.command),
        "installed_hash": cartridge.expected_hash or None,
    }


def broken_record(broken: "BrokenCartridge") -> dict[str, Any]:
    return {"origin": broken.origin, "error": broken.error.to_wire()}
