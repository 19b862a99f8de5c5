"""Owns how much memory this machine has, or the control group of this process where that is less.

It does not know who uses it.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_PROC: Final = Path("/proc/self/cgroup")
_ROOT: Final = Path("/sys/fs/cgroup")


def total_memory_bytes() -> int | None:
    """All memory that may be used here, by whatever process; None where the system does not say."""
    limits = [*_machine_bytes(), *group_limits(_PROC, _ROOT)]
    return min(limits, default=None)


def _machine_bytes() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return


def group_limits(groups: Path, root: Path) -> Iterator[int]:
    """The limits of the control group that `groups` names and of those that it lies in, of version 2 and 1.

    Inside a container the path that the kernel names may not be there; its own group is then the root that is seen.
    """
    try:
        lines = groups.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, is_whole, path = rest.partition(":")
        if not is_whole:
            continue
        if number == "0":
            yield from _limits_along(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_along(root / "memory", path, "memory.limit_in_bytes")


def _limits_along(root: Path, path: str, name: str) -> Iterator[int]:
    for part in (PurePosixPath(path), *PurePosixPath(path).parents):
        try:
            text = (root / str(part).lstrip("/") / name).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and int(text) > 0:  # "max" is no limit
            yield int(text)
