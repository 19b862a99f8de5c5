"""Owns reading the beginning of a file that lies elsewhere, and how the model in it grows with its context.

It does not know HTTP: a range of bytes is asked for through a function.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_modelkit.gguf.header import parse_header
from cartdeck_models.growth import Growth, growth_of_config, growth_of_header
from cartdeck_protocol.errors import Code, failure

Fetch = Callable[[int, int], bytes]
"""The bytes [first, end) of one file, all of them. Raises what the source raises."""

WINDOW_BYTES: Final = 1024 * 1024
"""The least that is asked for at once: the headers of most models end in the eighth of such pieces."""
MOST_HEADER_BYTES: Final = 64 * 1024 * 1024
"""No header is followed further; the longest known take half of it."""
MOST_CONFIG_BYTES: Final = 4 * 1024 * 1024


class RemoteFile:
    """The first bytes of a file of `size_bytes`, for a reader that goes forward."""

    def __init__(self, fetch: Fetch, path: str, size_bytes: int) -> None:
        self._fetch = fetch
        self._path = path
        self._size_bytes = size_bytes
        self._position = 0
        self._window_start = 0
        self._window = b""

    def seek(self, offset: int, /) -> int:
        self._position = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes; fewer only at the file's end. Raises BAD_MODEL_FILE beyond `MOST_HEADER_BYTES`."""
        first, end = self._position, min(self._position + size, self._size_bytes)
        if end > MOST_HEADER_BYTES:
            raise failure(
                Code.BAD_MODEL_FILE,
                f"The header of {self._path} does not end within {MOST_HEADER_BYTES:,} bytes.",
                details={"found": "a GGUF header without an end", "path": self._path},
            )
        if first < self._window_start or end > self._window_start + len(self._window):
            self._window_start = first
            self._window = self._fetch(first, min(max(end, first + WINDOW_BYTES), self._size_bytes))
        self._position = max(first, end)
        return self._window[first - self._window_start : max(first, end) - self._window_start]


def remote_gguf_growth(fetch: Fetch, path: str, size_bytes: int) -> Growth:
    """The growth of the GGUF model whose first file is `path`. Raises BAD_MODEL_FILE, MODEL_TRUNCATED."""
    header = parse_header(RemoteFile(fetch, path, size_bytes), Path(path), size_bytes=size_bytes)
    return growth_of_header(header)


def remote_config_growth(fetch: Fetch, size_bytes: int) -> Growth | None:
    """The growth that a config.json of `size_bytes` tells; None for one that is no configuration."""
    if size_bytes > MOST_CONFIG_BYTES:
        return None
    try:
        found = json.loads(fetch(0, size_bytes))
    except (ValueError, RecursionError):
        return None
    return growth_of_config(cast("Mapping[str, Any]", found)) if isinstance(found, dict) else None
