"""Owns entries that no longer fit in memory: one temporary file, written at its end and read in order.

It does not know who reads, nor when an entry is needed no more.
"""

import os
import tempfile
from typing import Any, Final, cast
from weakref import finalize

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck_protocol.errors import CartdeckError, Code, failure

_HEAD: Final = 17
_RAW, _PACKED, _HELD = 0, 1, 2


class Spill:
    """A file without a name, which goes with the process at the latest."""

    def __init__(self) -> None:
        self._file = -1
        self._closing: finalize[[int], Spill] | None = None
        self._end = 0
        self._held: list[Any] = []
        """Entries that only Python can hold, such as a path: few, and small."""

    def append(self, entry: Any, cost: int) -> None:
        """Add an entry, with what it counts for. Raises INSUFFICIENT_STORAGE when the disk is full."""
        kind, data = self._encode(entry)
        try:
            if self._file < 0:
                with tempfile.TemporaryFile(prefix="cartdeck-plan-") as file:
                    self._file = os.dup(file.fileno())
                self._closing = finalize(self, os.close, self._file)
            head = kind.to_bytes(1, "little") + len(data).to_bytes(8, "little") + cost.to_bytes(8, "little")
            frame = head + data
            written = os.pwrite(self._file, frame, self._end)
        except OSError as error:
            raise _unusable("written", error.strerror) from None
        if written < len(frame):
            raise _unusable("written", "the disk is full")
        self._end += written

    def read(self, offset: int) -> tuple[Any, int, int]:
        """The entry at `offset`, its cost, and where the next one is."""
        try:
            head = os.pread(self._file, _HEAD, offset)
            size, cost = int.from_bytes(head[1:9], "little"), int.from_bytes(head[9:], "little")
            data = os.pread(self._file, size, offset + _HEAD)
        except OSError as error:
            raise _unusable("read", error.strerror) from None
        if len(data) < size:
            raise _unusable("read", f"{size} bytes were expected, {len(data)} found")
        entry: Any = data
        if head[0] == _PACKED:
            entry = cast("Any", msgpack).unpackb(data, strict_map_key=False)
        elif head[0] == _HELD:
            entry = self._held[int.from_bytes(data, "little")]
        return entry, cost, offset + _HEAD + size

    def clear(self) -> None:
        """Nothing in it is needed any more: its place on the disk is free."""
        if self._closing is not None:
            self._closing()
            self._closing = None
            self._file = -1
        self._end = 0
        self._held.clear()

    def _encode(self, entry: Any) -> tuple[int, bytes]:
        if type(entry) is bytes:
            return _RAW, entry
        try:
            return _PACKED, cast("bytes", cast("Any", msgpack).packb(entry))
        except (TypeError, ValueError, OverflowError):
            self._held.append(entry)
            return _HELD, (len(self._held) - 1).to_bytes(8, "little")


def _unusable(what: str, why: str | None) -> CartdeckError:
    return failure(
        Code.INSUFFICIENT_STORAGE,
        f"values between the steps of a plan could not be {what} in {tempfile.gettempdir()}: {why}. "
        "Free disk space, or name another folder with TMPDIR.",
    )
