"""Owns the room for output that came and was not taken yet, of all calls of an engine together.

It does not know calls or streams. A slow reader holds at most its windows, but there may be many readers with many
outputs each, and an output that comes whole needs no credit: 60 calls with 40 such outputs were measured at 590 MiB.
The wire has no way to refuse what was granted, and to stop reading a process would hold up its other calls. So memory
has one budget; what comes beyond it waits in a file without a name, and is lost with the process at the latest.
"""

import os
import tempfile
from collections import deque
from typing import Final
from weakref import finalize

from cartdeck_protocol.errors import CartdeckError, Code, failure

_MOST_KEPT: Final = 0.5
"""The part of the budget that results may keep of what was taken already."""


class Stored:
    """A payload in the file, or what was not taken of it yet."""

    __slots__ = ("size", "slot", "start")

    def __init__(self, slot: int, size: int) -> None:
        self.slot = slot
        self.start = 0
        self.size = size


class Backlog:
    """`put` what came, `take` what goes to its reader. All on the loop's thread, but for `abandon`."""

    def __init__(self, memory_bytes: int, file_bytes: int, *, payload_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._payload_bytes = payload_bytes
        self._most_slots = file_bytes // payload_bytes
        self._file = -1
        self._closing: finalize[[int], Backlog] | None = None
        self._slots = 0
        self._free_slots: list[int] = []
        self._kept_bytes = 0
        self._used_bytes = 0
        self._abandoned: deque[tuple[int, int, list[Stored]]] = deque()

    @property
    def used_bytes(self) -> int:
        """In memory: what waits, and what results keep."""
        self._settle()
        return self._used_bytes

    @property
    def stored_bytes(self) -> int:
        """The room that payloads take in the file."""
        self._settle()
        return (self._slots - len(self._free_slots)) * self._payload_bytes

    def put(self, payload: bytes) -> "bytes | Stored":
        """`payload`, or what stands for it. Raises READER_STALLED when the file is full, INSUFFICIENT_STORAGE when it
        cannot be written: the call that it belongs to is at its end then."""
        used = self._used_bytes + len(payload)
        if used <= self._memory_bytes:
            self._used_bytes = used
            return payload
        self._settle()
        if self._used_bytes + len(payload) <= self._memory_bytes:
            self._used_bytes += len(payload)
            return payload
        return self._store(payload)

    def take(self, payload: "bytes | Stored") -> bytes:
        """What was put in: it waits no more. Raises INSUFFICIENT_STORAGE when the file cannot be read."""
        if isinstance(payload, Stored):
            return self._load(payload)
        self._used_bytes -= len(payload)
        return payload

    def take_part(self, stored: Stored, size: int) -> bytes:
        """The next `size` bytes of a payload that goes to its reader bit by bit, none of it held in memory meanwhile.
        The last of them end it, and so does INSUFFICIENT_STORAGE, raised when the file cannot be read."""
        try:
            data = self._read(stored, size)
        except CartdeckError:
            self._free(stored.slot)
            raise
        stored.start += size
        stored.size -= size
        if not stored.size:
            self._free(stored.slot)
        return data

    def keep(self, size: int) -> bool:
        """Count `size` bytes that a result keeps, if there is room for them."""
        if not self._can_keep(size):
            self._settle()
            if not self._can_keep(size):
                return False
        self._kept_bytes += size
        self._used_bytes += size
        return True

    def _can_keep(self, size: int) -> bool:
        most = self._memory_bytes
        return self._used_bytes + size <= most and self._kept_bytes + size <= _MOST_KEPT * most

    def let_go(self, size: int) -> None:
        """A result keeps `size` bytes less, or is its caller's now."""
        self._kept_bytes -= size
        self._used_bytes -= size

    def abandon(self, waiting_bytes: int, kept_bytes: int, stored: list[Stored]) -> None:
        """Nobody will take these. From any thread: a call may be garbage in another one than it was made in."""
        self._abandoned.append((waiting_bytes, kept_bytes, stored))

    def _settle(self) -> None:
        while self._abandoned:
            waiting_bytes, kept_bytes, stored = self._abandoned.popleft()
            self._used_bytes -= waiting_bytes + kept_bytes
            self._kept_bytes -= kept_bytes
            for payload in stored:
                self._free(payload.slot)

    # -- the file: slots of one payload each, so that a free one fits any

    def _store(self, payload: bytes) -> Stored:
        if self._free_slots:
            slot = self._free_slots.pop()
        elif self._slots < self._most_slots:
            slot = self._slots
            self._slots += 1
        else:
            raise failure(
                Code.READER_STALLED,
                f"{(self._used_bytes + self.stored_bytes) >> 20} MiB of output wait for callers that do not read, "
                "the most that is kept for all calls (wire.backlog_bytes, wire.backlog_file_bytes), and more came here",
            )
        try:
            if self._file < 0:
                self._open()
            written = os.pwrite(self._file, payload, slot * self._payload_bytes)
        except OSError as error:
            self._free(slot)
            raise _unusable("written", error.strerror) from None
        if written < len(payload):
            self._free(slot)
            raise _unusable("written", "the disk is full")
        return Stored(slot, len(payload))

    def _load(self, stored: Stored) -> bytes:
        try:
            return self._read(stored, stored.size)
        finally:
            self._free(stored.slot)

    def _read(self, stored: Stored, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, stored.slot * self._payload_bytes + stored.start)
        except OSError as error:
            raise _unusable("read", error.strerror) from None
        if len(data) < size:
            raise _unusable("read", f"{size} bytes were expected, {len(data)} found")
        return data

    def _open(self) -> None:
        with tempfile.TemporaryFile(prefix="cartdeck-") as file:
            self._file = os.dup(file.fileno())
        # Callers may read what waits for them when the engine is closed long since.
        self._closing = finalize(self, os.close, self._file)

    def _free(self, slot: int) -> None:
        """With the last payload the file goes too, and gives its place on the disk back."""
        self._free_slots.append(slot)
        if len(self._free_slots) == self._slots:
            self._free_slots.clear()
            self._slots = 0
            if self._closing is not None:
                self._closing()
                self._closing = None
                self._file = -1


def _unusable(what: str, why: str | None) -> CartdeckError:
    try:
        place = tempfile.gettempdir()
    except OSError:  # it tries to write a file: with all disks full there is none, which is what `why` says
        place = "a temporary file"
    return failure(
        Code.INSUFFICIENT_STORAGE,
        f"output that waits for callers could not be {what} in {place}: {why}. "
        "Read it without long pauses, free disk space, or name another folder with TMPDIR.",
    )
