"""Owns large pages under memory that the engine allocates.

It does not know what lies there. Each token passes over all weights: a processor that finds them in pages of 4 KiB
spends a sixth of its time on where they are (SmolLM2, one thread of a virtual machine: 13.5 ms a token, 11.3 with pages
of 2 MiB). Linux gives large pages to memory that asks for them, where its administrator lets it; elsewhere nothing
happens. A mapped file never gets them.
"""

import ctypes
from pathlib import Path
from typing import Final

_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")
_LEAST_BYTES: Final = 4 * 1024 * 1024
_MADV_HUGEPAGE: Final = 14

Ranges = list[tuple[int, int]]
"""Addresses, each range from its first byte to behind its last, in rising order."""


def page_bytes() -> int:
    """The size of a large page; 0 where the system gives none to who asks."""
    try:
        choice = (_SETTINGS / "enabled").read_text(encoding="ascii")
        size = int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return 0 if "[never]" in choice else size


def own_memory() -> Ranges:
    """Where this process has memory of its own, no file behind it; [] where the system does not say."""
    found: Ranges = []
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and not (name and name[0].startswith("[stack")):
            start, end = (int(one, 16) for one in addresses.split("-"))
            found.append((start, end))
    return found


def without(ranges: Ranges, known: Ranges) -> Ranges:
    """What of `ranges` is in none of `known`."""
    found: Ranges = []
    for start, end in ranges:
        place = start
        for known_start, known_end in known:
            if known_end > place and known_start < end:
                found.append((place, known_start))
                place = known_end
        found.append((place, end))
    return [(start, end) for start, end in found if start < end]


def ask_for_large_pages(before: Ranges) -> int:
    """Asks for them under what was allocated since `before` was taken by `own_memory`, in whole megabytes. They come
    where the memory is first written to. How many bytes were asked for."""
    size = page_bytes()
    if not size:
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    asked = 0
    for start, end in without(own_memory(), before):
        first, last = -(-start // size) * size, end // size * size
        if last - first >= _LEAST_BYTES and advise(first, last - first, _MADV_HUGEPAGE) == 0:
            asked += last - first
    return asked
