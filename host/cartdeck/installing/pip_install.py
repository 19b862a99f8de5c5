"""Owns an installation by pip: the options that its version takes, offline or not, and what its failures mean.

It does not know what is installed, nor what becomes of it.
"""

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Final

from cartdeck.installing.offline import OFFLINE_REMEDY, refuse_addresses
from cartdeck.installing.pip_run import Tell, run_pip
from cartdeck.installing.version_order import version_key
from cartdeck_protocol.errors import CartdeckError, Code, failure

OWN_DISTRIBUTION: Final = "cartdeck"
_RAW_SINCE: Final = version_key("24.1")
_LACKS: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]*[A-Za-z0-9])(.*)")


async def pip_install(
    requirements: Sequence[str],
    *,
    tell: Tell,
    before: Sequence[str] = (),
    options: Sequence[str] = (),
    offline: str = "",
) -> None:
    """Run `pip BEFORE install OPTIONS -- REQUIREMENTS`. `offline` says why nothing may be fetched; pip then asks no
    index, and starts without a network where this system allows it.

    Raises CARTRIDGE_UNAVAILABLE where pip finds no cartdeck or is not here, OFFLINE_NOT_CACHED where offline mode is
    in the way, START_FAILED where pip fails otherwise.
    """
    if offline:
        refuse_addresses(requirements, offline)
    form = ("--progress-bar", progress_form(_pip_version()))
    words = (*before, "install", *form, *(["--no-index"] if offline else ()), *options)
    try:
        await run_pip((*words, "--", *requirements), tell=tell, has_network=not offline)
    except CartdeckError as error:
        raise _explained(error, offline) from None


def progress_form(pip_version: str) -> str:
    """What --progress-bar is told: the pip that Python 3.11 brings along has no lines for a program."""
    return "raw" if version_key(pip_version) >= _RAW_SINCE else "off"


def _pip_version() -> str:
    """ "" where there is none, as pip itself will say."""
    try:
        return importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _explained(error: CartdeckError, offline: str) -> CartdeckError:
    lines: Sequence[str] = error.details.get("log", ())
    lacks = next((found for line in lines if (found := _LACKS.search(line))), None)
    if lacks is None:
        return error
    if lacks[1].lower() == OWN_DISTRIBUTION:
        message = "pip finds no cartdeck in its package index for the new environment"
        remedy = "Add --with and where cartdeck is: the folder of its source, or a wheel."
        return failure(Code.CARTRIDGE_UNAVAILABLE, message, details={"log": lines, "remedy": remedy})
    if not offline:
        return error
    message = f"offline mode is set ({offline}), and pip finds no {lacks[1]}{lacks[2]} on this machine"
    return failure(Code.OFFLINE_NOT_CACHED, message, details={"log": lines, "remedy": OFFLINE_REMEDY})
