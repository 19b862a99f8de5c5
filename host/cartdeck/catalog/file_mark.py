"""Owns the hashes of files that were hashed before: a mark holds while size and time are as it says.

It does not know what the files are.
"""

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

import platformdirs

from cartdeck_protocol.errors import Code, failure


class FileMarks:
    """The marks in a folder, one small file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or platformdirs.user_cache_path("cartdeck") / "hashed"

    def hash_of(self, path: Path, told: str | None = None) -> tuple[int, str]:
        """The size and the sha256 of a file, read only where it changed since. `told` is what it was just found to be,
        by whoever fetched it; it counts for a file that has no mark. Raises FILE_NOT_FOUND."""
        try:
            path = path.resolve(strict=True)
            state = path.stat()
            mark = self._folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
            known = _read(mark)
            if known is not None and known[:2] == [state.st_size, state.st_mtime_ns]:
                return state.st_size, str(known[2])
            is_told = known is None and told is not None
            sha256 = told if is_told and told is not None else _hashed(path)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}"
            raise failure(Code.FILE_NOT_FOUND, message, phase="obtaining", argument="model") from None
        _write(mark, [state.st_size, state.st_mtime_ns, sha256])
        return state.st_size, sha256


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(mark: Path) -> list[Any] | None:
    try:
        values: Any = json.loads(mark.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, list) and len(values) == 3 else None  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - any JSON


def _write(mark: Path, values: list[Any]) -> None:
    """One that cannot be written is none: the file is read again the next time."""
    staged = mark.with_name(f".{mark.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps(values), "utf-8")
        staged.replace(mark)
