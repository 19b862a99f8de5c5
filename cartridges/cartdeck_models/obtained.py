"""Owns what obtaining a model gives its caller: where it lies, its files, and where it came from.

It does not know how it was obtained.
"""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ObtainedFile:
    """One file: its absolute path, its size in bytes, and its sha256 where this cartridge has hashed it."""

    path: Path
    size_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Obtained:
    """A model that is here: `path` is absolute, a file or a folder; `revision` and `sha256` are None where unknown.

    `source` is `local`, `package`, `pypi` or `hub`. `resumed_bytes` counts bytes of an earlier, broken-off fetch that
    were used again. `note` is what the caller should know, as that the model does not fit in memory.
    """

    path: Path
    files: tuple[ObtainedFile, ...]
    source: str
    revision: str | None = None
    sha256: str | None = None
    resumed_bytes: int = 0
    note: str | None = None

    def to_json(self) -> bytes:
        """The record of the output `details`."""
        files = [{"path": str(file.path), "size_bytes": file.size_bytes, "sha256": file.sha256} for file in self.files]
        plain = {
            "path": str(self.path),
            "files": files,
            "source": self.source,
            "revision": self.revision,
            "sha256": self.sha256,
            "resumed_bytes": self.resumed_bytes,
            "note": self.note,
        }
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogateescape")
