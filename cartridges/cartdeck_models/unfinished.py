"""Owns what is here of a hub's repository whose transfer never came to its end: it is found, counted and told.

It does not know how a transfer goes on: fetching the model again takes up what is here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cartdeck_models.hub.cached import repository_folder
from cartdeck_models.record import time_of
from cartdeck_protocol.errors import CartdeckError, Code, failure

_BLOCK = 512
"""Bytes of the blocks that `stat` counts, whatever the disk's own are."""


@dataclass(frozen=True, slots=True)
class UnfinishedModel:
    """Parts of files of a repository. `size_bytes` is what they take of the disk; `used_s` when one last grew."""

    repository: str
    folder: Path
    parts: tuple[Path, ...]
    size_bytes: int
    used_s: float

    @property
    def spec(self) -> str:
        return f"hf:{self.repository}"

    @property
    def path(self) -> Path:
        return self.folder

    @property
    def places(self) -> tuple[Path, ...]:
        return ()

    @property
    def contents(self) -> tuple[Path, ...]:
        return self.parts

    def to_plain(self) -> dict[str, Any]:
        """As `WheelModel.to_plain`."""
        return {
            "spec": self.spec,
            "source": "hub",
            "revision": None,
            "refs": [],
            "path": str(self.folder),
            "size_bytes": self.size_bytes,
            "files": [],
            "last_used": time_of(self.used_s),
            "verified": None,
            "is_whole": False,
        }

    def not_whole(self) -> CartdeckError:
        """The error for work that needs the whole model."""
        return failure(
            Code.DOWNLOAD_INTERRUPTED,
            f"{self.spec} was never fetched to its end. `cartdeck pull {self.spec}` goes on with it, and "
            f"`cartdeck rm {self.spec}` removes what is here.",
            argument="model",
        )


def unfinished_of(cache_dir: Path, repository: str) -> UnfinishedModel | None:
    """What is here of a transfer of `repository` that broke off, or is under way."""
    root = repository_folder(cache_dir, repository)
    parts = tuple(sorted(_parts(root)))
    found = [(path, status) for path in parts if (status := _status(path)) is not None]
    if not found:
        return None
    size = sum(min(status.st_size, status.st_blocks * _BLOCK) for _, status in found)
    used_s = max(status.st_mtime for _, status in found)
    return UnfinishedModel(repository, root, tuple(path for path, _ in found), size, used_s)


def _parts(root: Path) -> Iterator[Path]:
    """Ours, and those of huggingface_hub."""
    yield from (path for path in (root / ".parts").rglob("*") if path.is_file())
    yield from (root / "blobs").glob("*.incomplete")


def _status(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:  # it has become whole meanwhile
        return None
