"""Owns the file of a catalog: where it is, and reading it. It does not know how it is edited."""

import os
from pathlib import Path
from typing import Final

import platformdirs

from cartdeck.catalog.catalog import Catalog, parse_catalog
from cartdeck_protocol.errors import Code, failure

CATALOG_VARIABLE: Final = "CARTDECK_CATALOG"


def catalog_path() -> Path:
    """The catalog's file: CARTDECK_CATALOG, or `catalog.toml` in the user's configuration folder."""
    named = os.environ.get(CATALOG_VARIABLE)
    return Path(named) if named else platformdirs.user_config_path("cartdeck") / "catalog.toml"


def load_catalog(path: Path | None = None) -> Catalog:
    """The catalog in `path`, or in the file that `catalog_path()` names; an empty one where that is missing.

    Raises BAD_ARGUMENT for a catalog that cannot be read or is not sound; FILE_NOT_FOUND when a file that was asked for
    by name is missing.
    """
    is_asked_for = path is not None or bool(os.environ.get(CATALOG_VARIABLE))
    path = path or catalog_path()
    text = read_text(path)
    if text is None and is_asked_for:
        raise failure(Code.FILE_NOT_FOUND, f"There is no catalog at {path}; `cartdeck catalog add` makes one.")
    return Catalog() if text is None else parse_catalog(text, origin=str(path))


def read_text(path: Path) -> str | None:
    """The text of a catalog; None where there is no file. Raises BAD_ARGUMENT for one that cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise failure(Code.BAD_ARGUMENT, f"The catalog {path} cannot be read: {reason}") from None
