"""Owns the question who has a file open: as a descriptor, or mapped into memory as weights are.

It does not know models. Only Linux answers, through /proc, and only for processes that this user may look at.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class User:
    """A process that has one of the files open."""

    pid: int
    name: str
    path: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})" if self.name else f"process {self.pid}"


def users_of(paths: Iterable[Path]) -> list[User]:
    """The processes that have one of `paths` open or mapped, one entry each; empty where the system does not say."""
    wanted = {os.path.realpath(path) for path in paths}
    users: list[User] = []
    for pid in _pids():
        found = next((path for path in _open_paths(pid) if path in wanted), None)
        if found is not None:
            users.append(User(pid, _name(pid), found))
    return users


def _pids() -> list[int]:
    try:
        return sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    except OSError:
        return []


def _open_paths(pid: int) -> Iterator[str]:
    """What the process has open; nothing for one that is not this user's, or gone."""
    folder = _PROC / str(pid)
    try:
        for line in (folder / "maps").read_text("utf-8", "surrogateescape").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                yield fields[5]
        descriptors = list((folder / "fd").iterdir())
    except OSError:
        return
    for path in descriptors:
        try:
            yield str(path.readlink())
        except OSError:
            continue  # closed meanwhile


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
