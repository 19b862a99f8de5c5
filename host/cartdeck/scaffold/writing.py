"""Owns how the files of a new cartridge come onto the disk: templates filled in, all of them or none.

It does not know what a cap is. Templates are files of this package that end in `.template`; in one, and in its name,
`%%word%%` stands for the value of `word`.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import Code, failure

_WORD: Final = re.compile(r"%%([a-z_]+)%%")
_ENDING: Final = ".template"


def write_cartridge(kind: str, folder: Path, words: Mapping[str, str], *, more: Mapping[str, bytes]) -> list[str]:
    """Write the templates of `kind` and the files `more` (path in the folder → bytes) into the new `folder`.

    It appears whole, or not at all. Gives the paths that were written, sorted. Raises BAD_ARGUMENT where something
    is there already, INSUFFICIENT_STORAGE where it cannot be written.
    """
    found = {
        _fill(path, words): _fill(source.read_text("utf-8"), words).encode()
        for path, source in _templates(files("cartdeck.scaffold").joinpath(kind), "")
    }
    contents = {**found, **more}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise failure(Code.BAD_ARGUMENT, f"{folder} is there already; name another place with --folder.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for path, data in contents.items():
                place = staging / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            staging.chmod(0o777 & ~_mask())
            staging.replace(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or error
        raise failure(Code.INSUFFICIENT_STORAGE, f"{folder} cannot be written: {reason}.") from None
    return sorted(contents)


def _templates(folder: Traversable, inside: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _templates(entry, f"{inside}{entry.name}/")
        elif entry.name.endswith(_ENDING):
            found.append((inside + entry.name.removesuffix(_ENDING), entry))
    return found


def _fill(text: str, words: Mapping[str, str]) -> str:
    return _WORD.sub(lambda match: words[match.group(1)], text)


def _mask() -> int:
    """The mask of this process, which can only be read by setting it: what mkdtemp makes is for its owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
