"""Owns the marks by which one process asks the engines of others to forget failures: `cartdeck cartridges reset`.

It does not know what failed. A mark is a file of the cartridge's name in the user's state folder; its time of change
is the message, so nothing needs to be read, answered or removed.
"""

from pathlib import Path
from typing import Final

import platformdirs

ALL: Final = "_all"
"""The mark that is meant for every cartridge: no cartridge has such a name."""


def marks_folder() -> Path:
    return platformdirs.user_state_path("cartdeck") / "resets"


def mark_reset(cartridge: str | None = None) -> None:
    """Ask every engine of this user to forget the failures of `cartridge`, of all without a name. Raises OSError."""
    folder = marks_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (cartridge or ALL)).write_bytes(b"")


class ResetMarks:
    """The marks as one engine sees them: those that were there before it are old."""

    def __init__(self) -> None:
        self._folder = marks_folder()
        self._seen = self._read()

    def news(self) -> set[str]:
        """The names whose mark was made or renewed since the last look."""
        found = self._read()
        changed = {name for name, changed_ns in found.items() if self._seen.get(name) != changed_ns}
        self._seen = found
        return changed

    def _read(self) -> dict[str, int]:
        try:
            return {path.name: path.stat().st_mtime_ns for path in self._folder.iterdir()}
        except OSError:  # nobody has ever asked
            return {}
