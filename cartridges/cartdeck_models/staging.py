"""Owns the folders in which transfers work: one for each, removed at its end, and swept when its process died.

It does not know what lies in them. A staging folder is on the cache's disk, so that a finished file moves by renaming.
"""

import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

OLD_S = 24 * 3600.0
"""A staging folder this old whose lock is free is swept even if its process seems alive: process numbers come again."""

_NAME = re.compile(r"(?P<host>.*)-(?P<pid>\d+)-[0-9a-f]{12}")


@contextmanager
def staging_folder(parent: Path) -> Generator[Path]:
    """A new folder of this process under `parent`; it and all in it are gone afterwards."""
    folder = parent / own_name()
    folder.mkdir(parents=True)
    try:
        with FileLock(lock_path(folder)):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_name() -> str:
    """A new name for a folder of this process: from it, others see whose it is."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"


def sweep(parent: Path) -> list[Path]:
    """Remove what processes that were killed left under `parent`; return the folders removed.

    One sweeper at a time. A folder stays while its lock is held, or while its process is alive: either alone is enough,
    since locks do nothing on some network disks, and process numbers mean nothing across containers.
    """
    if not parent.is_dir():
        return []
    try:
        with FileLock(parent / "sweep.lock", timeout=0):
            stale = [folder for folder in parent.iterdir() if folder.is_dir() and is_stale(folder)]
            for folder in stale:
                shutil.rmtree(folder, ignore_errors=True)
            return stale
    except Timeout:
        return []


def is_stale(folder: Path) -> bool:
    """Whether `folder` was left by a process that is gone: both its lock and its process say so, or its age does."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        return False
    try:
        age_s = time.time() - folder.stat().st_mtime
        if age_s < OLD_S and (match["host"] != socket.gethostname() or _is_alive(int(match["pid"]))):
            return False
        with FileLock(lock_path(folder), timeout=0):
            return True
    except (Timeout, OSError):
        return False


def _is_alive(pid: int) -> bool:
    """Whether the process runs. One that was killed and whose end nobody has asked for yet, a zombie, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")


def lock_path(folder: Path) -> Path:
    """The lock that the process which works in `folder` holds."""
    return folder / "owner.lock"
