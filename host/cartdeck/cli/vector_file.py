"""Owns a file of vectors in NumPy's format (.npy, version 1.0), written without NumPy.

It does not know where the vectors come from.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import Code, failure

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_ALIGNMENT: Final = 64


def write_vectors(path: Path, vectors: Sequence[bytes], *, is_forced: bool = False) -> None:
    """Writes vectors of little-endian float32 as the rows of one array; the file appears when it is whole.

    Raises BAD_ARGUMENT for a file that is there already, INSUFFICIENT_STORAGE where it cannot be written.
    """
    check_free(path, is_forced=is_forced)
    width = len(vectors[0]) // 4 if vectors else 0
    shape = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(vectors)}, {width}), }}"
    padding = -(len(_MAGIC) + 2 + len(shape) + 1) % _ALIGNMENT
    header = (shape + " " * padding + "\n").encode("ascii")
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(b"".join([_MAGIC, len(header).to_bytes(2, "little"), header, *vectors]))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        message = f"{path} cannot be written: {error.strerror}."
        raise failure(Code.INSUFFICIENT_STORAGE, message, argument="--out") from None


def check_free(path: Path, *, is_forced: bool) -> None:
    """Raises BAD_ARGUMENT for a file that is there already, FILE_NOT_FOUND for a folder that is not."""
    if path.exists() and not is_forced:
        raise failure(Code.BAD_ARGUMENT, f"{path} exists; --force overwrites it.", argument="--out")
    if not path.parent.is_dir():
        raise failure(Code.FILE_NOT_FOUND, f"There is no folder {path.parent} for {path.name}.", argument="--out")
