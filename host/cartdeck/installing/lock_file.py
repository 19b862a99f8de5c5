"""Owns the lock: which versions of a cartridge are installed, the hash of each, and which of them was asked for.

It does not know how a hash is made. The file lies in the cartridge folder, as JSON: `cartridges.lock`.
"""

import contextlib
import fcntl
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_protocol.errors import Code, failure

LOCK_FILE: Final = "cartridges.lock"
_FORMAT: Final = 1
_GUARD: Final = ".guard"


class Lock:
    """What the lock says. `versions[name]` is version → hash; `pinned[name]` is the version that was asked for."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self.pinned: dict[str, str] = {}

    def add(self, name: str, version: str, digest: str) -> None:
        self.versions.setdefault(name, {})[version] = digest

    def remove(self, name: str, version: str) -> None:
        versions = self.versions.get(name, {})
        versions.pop(version, None)
        if not versions:
            self.versions.pop(name, None)
        if self.pinned.get(name) == version:
            del self.pinned[name]

    def hash_of(self, name: str, version: str) -> str | None:
        return self.versions.get(name, {}).get(version)


def read_lock(folder: Path) -> Lock:
    """The lock of a cartridge folder; an empty one where there is none. Raises MANIFEST_DRIFT for a broken one."""
    path = folder / LOCK_FILE
    lock = Lock()
    try:
        plain: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return lock
    except (OSError, ValueError, RecursionError) as error:
        raise failure(Code.MANIFEST_DRIFT, f"{path} cannot be read: {error}; install its cartridges again") from None
    try:
        if plain["format"] != _FORMAT:
            raise ValueError(f"format {plain['format']}, expected {_FORMAT}")
        for name, entry in cast("dict[str, Any]", plain["cartridges"]).items():
            lock.versions[name] = {str(version): str(digest) for version, digest in entry["versions"].items()}
            if entry.get("pinned") is not None:
                lock.pinned[name] = str(entry["pinned"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise failure(Code.MANIFEST_DRIFT, f"{path} is no lock: {error}; install its cartridges again") from None
    return lock


def write_lock(folder: Path, lock: Lock) -> None:
    """Replace the lock of a cartridge folder, whole. Raises OSError."""
    cartridges = {
        name: {"pinned": lock.pinned.get(name), "versions": versions}
        for name, versions in sorted(lock.versions.items())
    }
    text = json.dumps({"format": _FORMAT, "cartridges": cartridges}, indent=2, ensure_ascii=False) + "\n"
    replace_text(folder / LOCK_FILE, text)


def replace_text(path: Path, text: str) -> None:
    """Write a file that a reader sees as it was or as it is, never in between. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text, "utf-8")
    staged.replace(path)


@contextlib.contextmanager
def guarded(folder: Path) -> Generator[None]:
    """One process at a time changes what is registered in `folder`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # let go with the descriptor, also by a process that is killed
        yield
