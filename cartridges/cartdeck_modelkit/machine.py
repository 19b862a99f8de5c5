"""Owns what this process may use of the machine: processors and memory, the limits of its control group included.

It does not know models, nor decides what they get.
"""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def default_threads() -> int:
    """How many threads to compute with when nobody says: half of what may be used, since a second thread of the same
    core adds little and a crowded machine slows every thread down to the slowest; at least 1."""
    return max(1, usable_processors() // 2)


def usable_processors() -> int:
    """The processors that this process may run on, by its affinity and by its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        count = min(count, max(1, int(quota[0]) // int(quota[1])))
    return count


def available_memory_bytes() -> int | None:
    """The memory that can still be taken without swapping; None where the system does not say."""
    machine = _meminfo_bytes("MemAvailable:")
    limit, used = _words(_CGROUP / "memory.max"), _words(_CGROUP / "memory.current")
    if limit and limit[0].isdigit() and used and used[0].isdigit():
        group = max(0, int(limit[0]) - int(used[0]) + _reclaimable_bytes())
        return group if machine is None else min(machine, group)
    return machine


def resident_memory_bytes() -> int:
    """The memory that this process has now; 0 where the system does not say."""
    words = _words(Path("/proc/self/statm"))
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def _reclaimable_bytes() -> int:
    """File pages that the control group counts as used and that the kernel gives back on demand."""
    try:
        lines = (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _meminfo_bytes(field: str) -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith(field)), None)
    return None if found is None else int(found[1]) * 1024


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
