"""Owns what a spec of a hub's model gave last time: the commit, the files and their hashes, one small file per spec.

It does not know the hub, nor its cache: paths are those in the repository.
"""

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from cartdeck_models.file_name import check_relative
from cartdeck_protocol.errors import CartdeckError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class RememberedFile:
    """A file, its path in the repository, its size in bytes, and the sha256 that was found when it was verified."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """`main` is the path of the file that stands for the model; None where the folder `folder` does."""

    spec: str
    commit: str
    files: tuple[RememberedFile, ...]
    main: str | None = None
    folder: str = ""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"


class Memory:
    """What specs gave, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, key: str) -> Remembered | None:
        """What the spec of `key` gave; None where nothing is known. Its use is noted."""
        path = self._path(key)
        try:
            found = _remembered(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, RecursionError, CartdeckError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def keep(self, key: str, remembered: Remembered) -> None:
        """Raises OSError where the disk refuses."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        staged.write_text(remembered.to_json(), encoding="utf-8")
        staged.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _remembered(found: Any) -> Remembered:
    """`found`, read strictly: it becomes paths."""
    values = cast("dict[str, Any]", found)
    if values["format"] != FORMAT or not values["files"]:
        raise ValueError("another format")
    main = values["main"]
    return Remembered(
        str(values["spec"]),
        check_relative(str(values["commit"])),
        tuple(_file(file) for file in values["files"]),
        None if main is None else check_relative(str(main)),
        check_relative(str(values["folder"])) if values["folder"] else "",
    )


def _file(values: dict[str, Any]) -> RememberedFile:
    return RememberedFile(check_relative(str(values["path"])), int(values["size_bytes"]), str(values["sha256"]))
