"""Owns reading the header of a safetensors file without trusting it: names, types and shapes, no weights.

It does not know models. The format: 8 bytes little-endian length, that much JSON, then the tensors' bytes, without gaps
up to the end of the file (https://github.com/huggingface/safetensors#format).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_protocol.errors import CartdeckError, Code, failure

LARGEST_HEADER_BYTES: Final = 100 * 1024 * 1024
"""The limit of the format's own reader."""

_BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "C64": 64, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of the file at `path`, by name.

    Raises `MODEL_TRUNCATED` with how much there is and how much there should be, `BAD_MODEL_FILE` for anything that is
    no safetensors file, `FILE_NOT_FOUND`.
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > file_bytes - 8:
                if len(start) == 8 and (length > LARGEST_HEADER_BYTES or file.read(1) != b"{"):
                    raise _bad(path, f"it begins with {start!r}, which is no safetensors header")
                raise _truncated(path, file_bytes, max(8 + length, 16))
            if length > LARGEST_HEADER_BYTES:
                raise _bad(path, f"its header says that it is {length:,} bytes long")
            text = file.read(length)
    except OSError as error:
        raise failure(
            Code.FILE_NOT_FOUND, f"{path} cannot be read: {error.strerror}", phase="load", details={"path": str(path)}
        ) from None
    entries, end = _entries(path, text)
    if 8 + length + end > file_bytes:
        raise _truncated(path, file_bytes, 8 + length + end)
    if 8 + length + end < file_bytes:
        raise _bad(path, f"behind its tensors are {file_bytes - 8 - length - end:,} bytes more")
    return entries


def _entries(path: Path, text: bytes) -> tuple[dict[str, TensorEntry], int]:
    """The tensors, and where the last one ends."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad(path, "its header is no JSON") from None
    if not isinstance(record, dict):
        raise _bad(path, "its header is no record")
    entries: dict[str, TensorEntry] = {}
    end = 0
    for name, value in cast("dict[str, Any]", record).items():
        if name == "__metadata__":
            continue
        entry, last = _entry(path, name, value)
        entries[name] = entry
        end = max(end, last)
    return entries, end


def _entry(path: Path, name: str, value: Any) -> tuple[TensorEntry, int]:
    try:
        dtype, shape = str(value["dtype"]), tuple(value["shape"])
        first, last = value["data_offsets"]
        is_sound = all(type(one) is int and one >= 0 for one in (*shape, first, last)) and first <= last
    except (KeyError, TypeError, ValueError):
        dtype, shape, first, last, is_sound = "", (), 0, 0, False
    if not is_sound:
        raise _bad(path, f"its header describes the tensor {name!r} in a way that is none")
    bits = _BITS.get(dtype)
    if bits is None:
        raise _bad(path, f"its tensor {name!r} is of the type {dtype!r}, which is not known")
    size_bytes: int = last - first
    if math.prod(shape) * bits != size_bytes * 8:
        raise _bad(path, f"its tensor {name!r} of shape {list(shape)} and type {dtype} has {size_bytes:,} bytes")
    return TensorEntry(dtype, shape, size_bytes), last


def _bad(path: Path, found: str) -> CartdeckError:
    return failure(
        Code.BAD_MODEL_FILE,
        f"{path} is no safetensors file: {found}",
        phase="load",
        details={"path": str(path), "found": found},
    )


def _truncated(path: Path, size_bytes: int, whole_bytes: int) -> CartdeckError:
    return failure(
        Code.MODEL_TRUNCATED,
        f"{path} has {size_bytes:,} of the {whole_bytes:,} bytes that its header tells of",
        phase="load",
        details={"path": str(path), "size_bytes": size_bytes, "expected_bytes": whole_bytes},
    )
