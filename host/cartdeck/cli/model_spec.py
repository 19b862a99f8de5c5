"""Owns what can be said of a model's spec at once, before any cartridge starts: an address, a path to nothing.

It does not know catalogs, nor whether a hub or an index has the model: the cartridge that looks for it says so.
"""

import os
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import CartdeckError, Code, failure

SPECS: Final = "hf:…, package:…, pypi:… or a local path"


def check_spec(spec: str, *, argument: str, takes: str = SPECS) -> None:
    """Raises BAD_ARGUMENT for an address, with what to write instead, and FILE_NOT_FOUND for a local path to nothing.

    Any other spec, a home folder of nobody among them, is left to the cartridge that looks for the model.
    """
    if "://" in spec:
        check_address(spec, argument=argument)
    if not (spec.startswith(("/", "./", "../", "~")) or not {"/", ":"} & set(spec)):
        return
    path = Path(os.path.expanduser(spec))  # noqa: PTH111 - Path's own raises for the home of nobody
    if not str(path).startswith("~") and not (spec and _may_be_there(path)):
        raise _not_there(path if spec else Path("''"), argument, takes)


def check_address(spec: str, *, argument: str) -> None:
    """Raises BAD_ARGUMENT for the address of a page, with the spec that is meant."""
    from cartdeck.catalog.source_text import about_address

    said = about_address(spec)
    if said is not None:
        raise failure(Code.BAD_ARGUMENT, f"{spec[:200]}: {said}.", argument=argument)


def _may_be_there(path: Path) -> bool:
    """Whether it is there, or cannot be seen: then the reader says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def _not_there(path: Path, argument: str, takes: str) -> CartdeckError:
    from cartdeck.near import near_names

    try:
        near = near_names(path.name, [one.name for one in path.parent.iterdir()])
    except OSError:
        near = []
    beside = f" Near it: {', '.join(near)}." if near else ""
    message = f"There is no model {str(path)!r}.{beside} {argument} takes {takes}."
    return failure(Code.FILE_NOT_FOUND, message, argument="model")
