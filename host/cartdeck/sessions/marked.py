"""Owns the search for processes that carry a mark in their environment, and their end.

It does not know sessions. A grandchild that left its process group (a daemon, `setsid`) is out of reach of a group's
signal, but it inherited the environment.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROUNDS: Final = 5
"""A process may fork between the look and the signal; each further round finds what the last one missed."""


def find_marked(variable: str, value: str) -> Iterator[int]:
    """The ids of this user's processes whose environment holds `variable=value`; none where there is no /proc."""
    entry = f"{variable}={value}".encode()
    try:
        names = os.listdir("/proc")  # noqa: PTH208  # Path objects for a thousand processes cost more than the look
    except OSError:
        return
    for name in names:
        if name.isdigit():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:  # another user's, or gone meanwhile
                continue
            if entry in environment.split(b"\0"):
                yield int(name)


def end_marked(variable: str, value: str) -> int:
    """KILL every process that carries the mark, except this one; how many there were."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in find_marked(variable, value) if pid != os.getpid() and pid not in ended]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            ended.add(pid)
    return len(ended)
