"""Owns what a disk can answer: room or none, and a write that is refused, each as a typed error.

It does not know what is written.
"""

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cartdeck_models.settings import MODELS_DIR
from cartdeck_models.task import size_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)


def check_room(folder: Path, need_bytes: int, *, what: str, setting: str = MODELS_DIR) -> None:
    """Raises INSUFFICIENT_STORAGE, with `need` and `free` in bytes, where the disk of `folder` has too little room."""
    free = shutil.disk_usage(folder).free
    if need_bytes > free:
        raise failure(
            Code.INSUFFICIENT_STORAGE,
            f"{what} needs {size_text(need_bytes)} on the disk of {folder}, which has {size_text(free)} free. "
            f"Free some space, or set {setting} to a folder on another disk.",
            details={"need": need_bytes, "free": free},
        )


def disk_full(folder: Path, *, what: str, setting: str = MODELS_DIR) -> CartdeckError:
    """The error for a disk that ran full while its need was not known before."""
    free = shutil.disk_usage(folder).free
    return failure(
        Code.INSUFFICIENT_STORAGE,
        f"The disk of {folder} ran full while {what} was written; it has {size_text(free)} free now. "
        f"Free some space, or set {setting} to a folder on another disk.",
        details={"free": free},
    )


@contextmanager
def disk_errors(folder: Path, *, what: str, setting: str = MODELS_DIR) -> Generator[None]:
    """Turn a write that the disk of `folder` refused into a typed error; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(folder, what=what, setting=setting) from error
        if error.errno in _REFUSED:
            raise failure(
                Code.NOT_WRITABLE,
                f"The model cache {folder} cannot be written: {error.strerror} ({error.filename or folder}). "
                f"Set {setting} to a folder that can.",
            ) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last through a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
