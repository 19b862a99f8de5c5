"""Owns the marks that say when content of the hub's cache was last hashed and found right.

It does not know hashes. The cache belongs to other tools too, so the marks lie in a folder of ours, one small file for
each content; a mark is believed only while the content's size and time of change are those that were marked.
"""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, cast

from cartdeck_models.record import now_text


class Verified:
    """The marks under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mark(self, repository: str, content_id: str, content: Path) -> str:
        """Say that `content`, in the cache of `repository`, was just found to be `content_id`; when that was.

        A mark that cannot be written is none: the next verification writes it again.
        """
        now = now_text()
        found = content.stat()
        path = self._path(repository, content_id)
        staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            values = {"verified": now, "size_bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
            staged.write_text(json.dumps(values), encoding="utf-8")
            staged.replace(path)
        return now

    def when(self, repository: str, content_id: str, content: Path) -> str | None:
        """When `content` was marked, in UTC as ISO 8601; None where it was not, or has changed since."""
        try:
            values: Any = json.loads(self._path(repository, content_id).read_bytes())
            found = content.stat()
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(values, dict):
            return None
        marked = cast("dict[str, Any]", values)
        if (marked.get("size_bytes"), marked.get("mtime_ns")) != (found.st_size, found.st_mtime_ns):
            return None
        when = marked.get("verified")
        return when if isinstance(when, str) else None

    def forget(self, repository: str, content_id: str) -> None:
        """Remove the mark, and the folder of a repository that has none left."""
        path = self._path(repository, content_id)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(path.parent)  # noqa: PTH106 - only if it is empty

    def _path(self, repository: str, content_id: str) -> Path:
        return self._folder / repository.replace("/", "--") / f"{content_id}.json"
