"""Owns the trace file of an engine: records in, JSON lines out, by a thread of its own.

It does not know frames. Nothing waits for it: what its thread cannot write in time is dropped, and counted.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from cartdeck.peers.envelope import Envelope, secrets_of
from cartdeck_protocol.errors import Code, failure

TRACE_VARIABLE: Final = "CARTDECK_TRACE"
PAYLOADS_VARIABLE: Final = "CARTDECK_TRACE_PAYLOADS"
FORMAT: Final = 1
"""The version of the records; it stands in the first record of each engine."""

_LOGGER = logging.getLogger("cartdeck.sessions.trace")
_MOST_WAITING: Final = 65_536
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
_MOST_FILE_BYTES: Final = 1024 * 1024 * 1024
_BATCH: Final = 512
_CLOSE_S: Final = 5.0


class Trace:
    """An open trace file. Records of several engines follow one another; each begins with a head."""

    def __init__(self, descriptor: int, envelope: Envelope) -> None:
        self.envelope = envelope
        self.dropped = 0
        self._descriptor = descriptor
        self._file_bytes = os.fstat(descriptor).st_size
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_all, name="cartdeck-trace", daemon=True)
        self.add({"trace": FORMAT, "pid": os.getpid(), "payloads": envelope.with_payloads}, 0)
        self._thread.start()

    def add(self, record: dict[str, Any], weight_bytes: int) -> None:
        """Take a record; the time is added. `weight_bytes` is about what it holds in memory beside the usual."""
        record = {"time": time.time(), **record}
        with self._changed:
            if self._is_closed:
                return
            if len(self._waiting) >= _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
                self.dropped += 1
                return
            self._waiting.append((record, weight_bytes))
            self._waiting_bytes += weight_bytes
            if len(self._waiting) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Write what waits, within a few seconds, and close the file. Blocks."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)

    def _write_all(self) -> None:
        try:
            while batch := self._next_batch():
                self._write("".join(map(_line, batch)).encode("utf-8", "replace"))
        except OSError as error:
            _LOGGER.warning("the trace ends here, it cannot be written: %s", error.strerror)
        finally:
            with self._changed:
                self._is_closed = True
            os.close(self._descriptor)

    def _next_batch(self) -> list[dict[str, Any]]:
        """What waits, a part of it; empty at the end."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            batch: list[dict[str, Any]] = []
            while self._waiting and len(batch) < _BATCH:
                record, weight = self._waiting.popleft()
                self._waiting_bytes -= weight
                batch.append(record)
            if self.dropped:
                batch.append({"time": time.time(), "dropped": self.dropped})
                self.dropped = 0
        return batch

    def _write(self, data: bytes) -> None:
        if self._file_bytes + len(data) > _MOST_FILE_BYTES:
            raise OSError(0, f"the file would be larger than {_MOST_FILE_BYTES} bytes")
        self._file_bytes += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


def open_trace() -> Trace | None:
    """The trace that the environment asks for; None where it asks for none. Blocks. Raises BAD_ARGUMENT."""
    path = os.environ.get(TRACE_VARIABLE)
    if not path:
        return None
    try:
        # Appended to, since several engines may share a file; for the user alone, since it tells of his work.
        descriptor = os.open(Path(path).expanduser(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"{TRACE_VARIABLE} names {path}, which cannot be written: {error.strerror}"
        raise failure(Code.BAD_ARGUMENT, message) from None
    return Trace(descriptor, Envelope(secrets_of(), with_payloads=os.environ.get(PAYLOADS_VARIABLE) == "1"))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
