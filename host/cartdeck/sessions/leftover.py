"""Owns what a host leaves behind when it is killed: processes and folders that carry its mark, found and swept later.

It does not know sessions. The mark of a host is its process id with the time of its start, so that another process that
got the same number is not taken for it, and with the place of its id, which is the namespace and the machine: of a host
in another container, or on another machine that shares a folder, nobody here can tell whether it lives.
"""

import contextlib
import os
import platform
import re
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

ENGINE_VARIABLE: Final = "CARTDECK_ENGINE"
FOLDER_PREFIX: Final = "cartdeck-"
_FOLDER: Final = re.compile(rf"{FOLDER_PREFIX}(\d+-\d+-\d+)-.+")


@cache
def _own_mark(pid: int) -> str:
    started = None
    with contextlib.suppress(OSError):
        started = _started(pid)
    return f"{pid}-{started or 0}-{_place()}"


def engine_mark() -> str:
    """The mark of this process: "PID-START-PLACE"."""
    return _own_mark(os.getpid())  # by the id, so that a fork has a mark of its own


def is_mark_dead(mark: str) -> bool:
    """Whether the host that carried the mark is gone; False where that cannot be told."""
    parts = mark.split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return False
    pid, started, place = parts
    if int(place) != _place():
        return False
    try:
        if int(started):
            return _started(int(pid)) != int(started)
        os.kill(int(pid), 0)  # a system without /proc
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # for want of file descriptors, say
        return False
    return False


def private_folder() -> Path:
    """A new temporary folder for one process, for its owner alone, which names the host that has to remove it."""
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{engine_mark()}-"))


def end_orphans() -> int:
    """KILL this user's processes whose host is dead; how many there were."""
    ended = 0
    for pid in _pids():
        mark = _mark_of(pid)
        if pid != os.getpid() and mark and is_mark_dead(mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    return ended


def remove_dead_folders(is_wanted: Callable[[], bool] = lambda: True) -> int:
    """Remove the temporary folders of dead hosts, as long as that is wanted; how many there were."""
    removed, place = 0, Path(tempfile.gettempdir())
    try:
        names = os.listdir(place)  # noqa: PTH208  # names alone are wanted, of what may be a great many files
    except OSError:
        return 0
    for named in filter(None, map(_FOLDER.fullmatch, names)):
        if not is_wanted():
            break
        path = place / named[0]
        with contextlib.suppress(OSError):
            if is_mark_dead(named[1]) and _is_own(path) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # names alone are wanted
    except OSError:
        return []


def _mark_of(pid: int) -> str:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone meanwhile
        return ""
    if not _is_own(Path(f"/proc/{pid}")):  # root can read everybody's
        return ""
    prefix = f"{ENGINE_VARIABLE}=".encode()
    return next((entry[len(prefix) :].decode("ascii", "replace") for entry in entries if entry.startswith(prefix)), "")


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


@cache
def _place() -> int:
    """Where process ids mean what they mean to this process: a checksum of the namespace's number, which the first one
    of every machine has, and of what tells machines apart."""
    names = [platform.node()]
    with contextlib.suppress(OSError):
        names.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    with contextlib.suppress(OSError):
        names.append(Path("/etc/machine-id").read_text("ascii", "replace").strip())
    return zlib.crc32(" ".join(names).encode("utf-8", "replace"))


def _started(pid: int) -> int | None:
    """When the process began, in the kernel's ticks since the machine did; None where it is not there, or ended.
    Raises OSError where that cannot be looked at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
