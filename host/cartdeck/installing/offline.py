"""Owns when an installation may fetch nothing, and what is refused for it before anything begins.

It does not know pip. Offline mode is that of models: whoever set it wants nothing from the network.
"""

import os
import re
from collections.abc import Iterable
from typing import Final

from cartdeck.settings import Settings
from cartdeck_protocol.errors import Code, failure

OFFLINE_REMEDY: Final = (
    "Give a wheel that lies here, with what it needs behind --with, or name a folder of wheels in PIP_FIND_LINKS; "
    "or leave offline mode."
)
_VARIABLES: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES: Final = frozenset({"1", "ON", "YES", "TRUE"})
_ADDRESS: Final = re.compile(r"(?<![A-Za-z0-9.+-])([A-Za-z][A-Za-z0-9.-]*\+)?(?!file:)[A-Za-z][A-Za-z0-9.-]*://")


def offline_reason(settings: Settings) -> str:
    """What says that nothing may be fetched: a setting or a variable by its name; "" where nothing says it."""
    if settings.models.offline:
        return "models.offline"
    return next((name for name in _VARIABLES if os.environ.get(name, "").upper() in _YES), "")


def refuse_addresses(requirements: Iterable[str], reason: str) -> None:
    """Raises OFFLINE_NOT_CACHED for a requirement that names a place on the network, however pip finds the others."""
    for one in requirements:
        if _ADDRESS.search(one):
            message = f"offline mode is set ({reason}), and {one} is not on this machine"
            raise failure(Code.OFFLINE_NOT_CACHED, message, details={"remedy": OFFLINE_REMEDY})
