"""Owns the bytes on their way out of a cartridge: the one thing that two threads touch, under one lock.

It does not know frames. Only whole frames are put in, so that the timer thread can add a heartbeat at any time and
write out what waits even while the loop is held.
"""

import os
from collections import deque
from collections.abc import Iterable
from threading import Lock
from typing import Final

Buffer = bytes | memoryview

_MOST_BUFFERS: Final = 512
"""Buffers per writev: well below IOV_MAX (1024), enough that a crowd of small frames leaves in one call."""


class Outbox:
    """A queue of buffers and the descriptor that they go to."""

    def __init__(self, write_fd: int) -> None:
        self._fd = write_fd
        self._lock = Lock()
        self._buffers: deque[Buffer] = deque()
        self.waiting_bytes = 0
        self.is_broken = False
        """The host closed its end: what is put in is dropped."""

    def put(self, buffers: Iterable[Buffer]) -> None:
        with self._lock:
            for buffer in buffers:
                self._buffers.append(buffer)
                self.waiting_bytes += len(buffer)

    def send(self, frame: bytes) -> bool:
        """Write one whole frame of at most PIPE_BUF bytes now. False, and nothing is written, while others wait or the
        pipe is full."""
        with self._lock:
            if self._buffers or self.is_broken:
                return False
            try:
                os.write(self._fd, frame)
            except BlockingIOError:
                return False
            except OSError:
                self.is_broken = True
                return False
            return True

    def flush(self) -> bool:
        """Write as much as the pipe takes; True when nothing waits any more."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        buffers = self._buffers
        while buffers and not self.is_broken:
            batch = [buffers[index] for index in range(min(len(buffers), _MOST_BUFFERS))]
            try:
                written = os.writev(self._fd, batch)
            except BlockingIOError:
                return False
            except OSError:
                self.is_broken = True
                break
            self.waiting_bytes -= written
            while written:
                first = buffers[0]
                if written < len(first):
                    buffers[0] = memoryview(first)[written:]
                    break
                written -= len(first)
                buffers.popleft()
        if self.is_broken:
            buffers.clear()
            self.waiting_bytes = 0
        return True
