"""Owns reading the header of a GGUF file: its metadata, its tensor table, and how long the file must be.

It does not know llama.cpp, and takes no weights into memory. Source: the GGUF specification in ggml's `docs/gguf.md`.
"""

import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cartdeck_modelkit.gguf.file_kind import FIRST_BYTES, name_kind
from cartdeck_modelkit.gguf.header_bytes import MARK_EVERY, HeaderBytes, Source, truncated
from cartdeck_modelkit.gguf.tensor_type import TENSOR_TYPES
from cartdeck_protocol.errors import CartdeckError, Code, failure

READABLE_VERSIONS = (2, 3)

_ARRAY_KEPT = 4096
_KEY_LIMIT_BYTES = 65_535
_ELEMENT_LIMIT = (1 << 63) - 1
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """An array in the metadata: `values` when it is a short one of numbers; of one of strings, where they lie.

    `marks` says where every `MARK_EVERY`th string begins, `end` where the last one ends.
    """

    count: int
    values: tuple[int | float | bool, ...] | None = None
    longest_bytes: int = 0
    marks: list[int] | None = None
    end: int = 0


Value = int | float | bool | str | ArrayValue


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table. `offset` counts from the start of the data; `size_bytes` is None for a type
    that this table of types does not know."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def elements(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count

    @property
    def type_name(self) -> str:
        known = TENSOR_TYPES.get(self.type_id)
        return known.name if known else f"type-{self.type_id}"

    @property
    def size_bytes(self) -> int | None:
        known = TENSOR_TYPES.get(self.type_id)
        return known.size_bytes(self.elements) if known else None


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself."""

    path: Path
    size_bytes: int
    version: int
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_offset: int

    @property
    def architecture(self) -> str:
        """The model's architecture as llama.cpp names it; "" when the file does not say."""
        return self.text("general.architecture") or ""

    @property
    def needed_bytes(self) -> int:
        """The least size of a file that holds every tensor of the table."""
        ends = (tensor.offset + (tensor.size_bytes or 0) for tensor in self.tensors)
        return self.data_offset + max(ends, default=0)

    def text(self, key: str) -> str | None:
        """The text under `key`, None when there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """The whole number under `key`, None when there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def check_complete(self) -> None:
        """Raises `MODEL_TRUNCATED` with `size` and `needed` when the file ends before its last tensor does."""
        if self.size_bytes < self.needed_bytes:
            raise truncated(str(self.path), size_bytes=self.size_bytes, needed_bytes=self.needed_bytes)

    def strings_at(self, key: str, indices: list[int]) -> dict[int, str]:
        """The strings at `indices` of the array of strings under `key`; an index that is not there is left out."""
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue) or value.marks is None:
            return {}
        found: dict[int, str] = {}
        with self.path.open("rb") as file:
            for index in indices:
                if 0 <= index < value.count:
                    file.seek(value.marks[index // MARK_EVERY])
                    found[index] = _nth_string(file, index % MARK_EVERY, value.longest_bytes)
        return found

    def strings(self, key: str) -> list[bytes]:
        """All strings of the array under `key`; empty when there is none."""
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue) or not value.marks:
            return []
        with self.path.open("rb") as file:
            file.seek(value.marks[0])
            data = file.read(value.end - value.marks[0])
        found: list[bytes] = []
        at = 0
        for _ in range(value.count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            found.append(data[start:at])
        return found


def read_header(path: Path) -> Header:
    """Reads the header of the GGUF file at `path`, in time and memory that its true size bounds.

    Raises `FILE_NOT_FOUND`, `BAD_MODEL_FILE` (with `found` in the details: a directory, an HTML page, a Git LFS
    pointer, an old GGML file, a damaged header), `MODEL_TRUNCATED` for one that is cut inside its header (ask
    `check_complete` about the tensors), `UNSUPPORTED_ARCHITECTURE` for a version that is not read.
    """
    size_bytes = _regular_file_size(path)
    try:
        with path.open("rb") as file:
            return parse_header(file, path, size_bytes=size_bytes)
    except OSError as error:
        raise _not_a_model(path, f"a file that cannot be read ({error.strerror})") from None


def _regular_file_size(path: Path) -> int:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise failure(Code.FILE_NOT_FOUND, f"there is no file at {path}") from None
    except (OSError, ValueError) as error:
        raise failure(Code.FILE_NOT_FOUND, f"the path {str(path)[:200]!r} cannot be used: {error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise _not_a_model(path, "a directory")
    if not stat.S_ISREG(found.st_mode):
        raise _not_a_model(path, "a pipe, socket or device")
    return found.st_size


def _not_a_model(path: Path, found: str) -> CartdeckError:
    return failure(
        Code.BAD_MODEL_FILE,
        f"{path} is {found}, not a GGUF model file",
        details={"found": found, "path": str(path)},
    )


def parse_header(file: Source, path: Path, *, size_bytes: int) -> Header:
    """The header at the start of `file`, which is `size_bytes` long in all; `path` is what errors call it.

    It is read from its start, and only as far as the header goes. Raises what `read_header` raises for the content.
    """
    first = file.read(FIRST_BYTES)
    if first[:4] != b"GGUF":
        raise _not_a_model(path, name_kind(first))
    file.seek(0)
    source = HeaderBytes(file, path=str(path), size_bytes=size_bytes)
    source.skip(4)
    version = source.u32()
    _check_version(path, version)
    tensor_count, pair_count = source.u64(), source.u64()
    metadata = _read_metadata(source, pair_count)
    tensors = tuple(_read_tensor(source) for _ in range(_plausible(source, tensor_count, "tensors")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise source.corrupt(f"the alignment {alignment!r}, which is no power of two")
    data_offset = -(-source.position // alignment) * alignment
    return Header(path, size_bytes, version, metadata, tensors, data_offset)


def _check_version(path: Path, version: int) -> None:
    if version in READABLE_VERSIONS:
        return
    if version & 0xFFFF == 0:
        raise _not_a_model(path, "a big-endian GGUF file, made for another kind of processor")
    raise failure(
        Code.UNSUPPORTED_ARCHITECTURE,
        f"{path} is a GGUF file of version {version}; versions 2 and 3 are read. "
        + ("Convert the model again." if version < READABLE_VERSIONS[0] else "Update cartdeck and llama-cpp-python."),
        details={"architecture": None, "version": version, "engine": "llama.cpp"},
    )


def _plausible(source: HeaderBytes, count: int, what: str) -> int:
    """`count` itself, when as many entries could fit into a header at all: each takes 12 bytes or more."""
    if count > 10_000_000:
        raise source.corrupt(f"{count:,} {what}")
    return count


def _read_metadata(source: HeaderBytes, pair_count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(_plausible(source, pair_count, "pairs of metadata")):
        key = _read_name(source)
        if key in metadata:
            raise source.corrupt(f"the key {key[:100]!r} twice")
        metadata[key] = _read_value(source, source.u32())
    return metadata


def _read_name(source: HeaderBytes) -> str:
    length = source.u64()
    if not 0 < length <= _KEY_LIMIT_BYTES:
        raise source.corrupt(f"a name of {length:,} bytes")
    return source.take(length).decode("utf-8", errors="replace")


def _read_value(source: HeaderBytes, type_id: int) -> Value:
    if type_id == _STRING:
        return source.string().decode("utf-8", errors="replace")
    if type_id == _ARRAY:
        return _read_array(source)
    scalar = _SCALARS.get(type_id)
    if scalar is None:
        raise source.corrupt(f"a value of the unknown type {type_id}")
    value: int | float | bool = scalar.unpack(source.take(scalar.size))[0]
    return value


def _read_array(source: HeaderBytes) -> ArrayValue:
    type_id, count = source.u32(), source.u64()
    if type_id == _STRING:
        longest, marks = source.skip_strings(count)
        return ArrayValue(count, longest_bytes=longest, marks=marks, end=source.position)
    scalar = _SCALARS.get(type_id)
    if scalar is None:
        raise source.corrupt("an array in an array" if type_id == _ARRAY else f"an array of the unknown type {type_id}")
    if count > _ARRAY_KEPT:
        source.skip(count * scalar.size)
        return ArrayValue(count)
    data = source.take(count * scalar.size)
    return ArrayValue(count, values=tuple(value for (value,) in scalar.iter_unpack(data)))


def _read_tensor(source: HeaderBytes) -> Tensor:
    name = _read_name(source)
    dimensions = source.u32()
    if dimensions > 4:
        raise source.corrupt(f"the tensor {name[:100]!r} with {dimensions:,} dimensions")
    shape = tuple(source.u64() for _ in range(dimensions))
    tensor = Tensor(name, shape, type_id=source.u32(), offset=source.u64())
    if tensor.elements > _ELEMENT_LIMIT or tensor.offset > _ELEMENT_LIMIT:
        raise source.corrupt(f"the tensor {name[:100]!r} of the shape {shape}")
    return tensor


def _nth_string(file: BinaryIO, skip: int, longest_bytes: int) -> str:
    """The string after the next `skip` ones; no string is read beyond the longest that the header was seen to hold."""
    for _ in range(skip):
        file.seek(int.from_bytes(file.read(8), "little"), 1)
    length = int.from_bytes(file.read(8), "little")
    return file.read(min(length, longest_bytes)).decode("utf-8", errors="replace")
