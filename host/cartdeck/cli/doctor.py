"""Owns `cartdeck doctor`: everything that is examined, printed, with what mends each problem.

It does not know what is examined.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cartdeck.cli.exit_codes import ExitCode
from cartdeck.cli.options import AsJson

if TYPE_CHECKING:
    from cartdeck.doctor.finding import Finding


def doctor(as_json: AsJson = False) -> None:
    """Examine this installation: interpreter, libraries, cartridges, caches, isolation, and what dead hosts left.

    Each cartridge is started and ended again; no model is loaded. Exit code 6 where there is a problem.

    Example: cartdeck doctor
    """
    from cartdeck.cli.listing import print_rows, print_text
    from cartdeck.cli.render import json_line
    from cartdeck.cli.running import run_interruptible
    from cartdeck.doctor.finding import is_well

    findings = run_interruptible(_examine)
    if as_json:
        print_text(json_line({"is_well": is_well(findings), "findings": [one.to_plain() for one in findings]}))
    else:
        rows = [[one.topic, str(one.health), one.said, one.remedy] for one in findings]
        print_rows(["what", "state", "found", "to mend it"], rows)
    if not is_well(findings):
        raise typer.Exit(ExitCode.ENVIRONMENT)


async def _examine() -> "list[Finding]":
    import anyio.to_thread

    from cartdeck import __version__
    from cartdeck.doctor.cartridges import examine_cartridges
    from cartdeck.doctor.finding import Finding
    from cartdeck.doctor.libraries import examine_libraries
    from cartdeck.doctor.machine import examine_machine
    from cartdeck.doctor.storage import examine_storage, sweep
    from cartdeck.engine import Engine
    from cartdeck.settings import load_settings

    is_cut_wanted = load_settings().isolation.network != "off"
    findings = [Finding(topic="cartdeck", said=f"version {__version__}")]
    findings += await anyio.to_thread.run_sync(
        lambda: [*examine_machine(is_cut_wanted=is_cut_wanted), *examine_libraries()]
    )
    async with Engine() as engine:
        findings += await examine_cartridges(engine)
        places = await _model_folders(engine)
    findings += await anyio.to_thread.run_sync(lambda: [*examine_storage(places), sweep()])
    return findings


async def _model_folders(engine: Any) -> list[tuple[str, Path]]:
    """Where models are kept, as the cartridge that keeps them says; nothing where it cannot be asked."""
    from cartdeck.cli.config import CAP
    from cartdeck_protocol.errors import CartdeckError

    try:
        said = (await engine.run(CAP, {}, timeout_s=30)).json()
    except CartdeckError:
        return []
    return [("models of a hub", Path(said["cache_folder"])), ("other models", Path(said["folder"]))]
