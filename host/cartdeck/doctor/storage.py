"""Owns the examination of what is kept on the disk, and the sweeping of what dead hosts left.

It does not know what is in a cache, only how much room it takes.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs

from cartdeck.doctor.finding import Finding, Health
from cartdeck.installing.isolated import sweep_unfinished
from cartdeck.sessions.leftover import end_orphans, remove_dead_folders


def examine_storage(more: Iterable[tuple[str, Path]] = ()) -> Iterator[Finding]:
    """`more` are further folders, with a word for what is in them."""
    cache, data = platformdirs.user_cache_path("cartdeck"), platformdirs.user_data_path("cartdeck")
    places = [
        ("built wheels", cache / "wheels"),
        ("manifests that programs printed", cache / "manifests"),
        ("installed environments", data / "environments"),
        *more,
    ]
    seen: set[Path] = set()
    for what, folder in places:
        if folder not in seen and folder.is_dir():
            seen.add(folder)
            yield Finding(topic="storage", said=f"{what}: {size_text(size_bytes(folder))} in {folder}")


def sweep() -> Finding:
    """End the processes and remove the folders that hosts left which are dead."""
    processes, folders, unfinished = end_orphans(), remove_dead_folders(), sweep_unfinished()
    if not processes and not folders and not unfinished:
        return Finding(topic="leftovers", said="dead hosts left nothing behind")
    counts = (
        f"{processes} processes ended, {folders} temporary folders and {unfinished} unfinished environments removed"
    )
    said = f"swept what dead hosts left: {counts}"
    return Finding(topic="leftovers", said=said, health=Health.NOTE)


def size_bytes(folder: Path) -> int:
    """The room that the files of a folder take on the disk, each counted once however many names it has."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(Path(path, name))
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
    return total


def size_text(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
