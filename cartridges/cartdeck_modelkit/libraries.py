"""Owns the look at whether a cartridge's libraries are in this Python: before anything is obtained for them.

It does not import them, which takes seconds: a library that is there and cannot be loaded is found by loading it.
"""

import importlib.util

from cartdeck_protocol.errors import Code, failure


def check_installed(*modules: str, extra: str) -> None:
    """Raises `CARTRIDGE_UNAVAILABLE` for the first of the top-level `modules` that is not there; `extra`, of this
    distribution, brings it."""
    for module in modules:
        if not _is_there(module):
            raise failure(
                Code.CARTRIDGE_UNAVAILABLE,
                f"{module} is not in this Python; install it with: pip install 'cartdeck[{extra}]'",
                phase="load",
            )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
