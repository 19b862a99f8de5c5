"""Owns the way of one output's pieces from a thread that computes straight into the pipe, past the event loop.

It does not know what they say. A piece that goes by way of the loop wakes the loop's thread, which wakes the host:
0.3 ms of a processor for a few characters, which the thread that computes beside it feels. Here the credit of the
stream is lent to the thread, so that the loop, without credit, sends nothing of that stream meanwhile; whole frames go
into the outbox, which is made for several threads.
"""

import select
from threading import Lock
from typing import Final, Protocol

from cartdeck_protocol.wire import Connection, OutStream, encode_chunk
from cartdeck_sdk.outbox import Outbox

_MOST_BYTES: Final = getattr(select, "PIPE_BUF", 512)
"""A pipe takes so much whole or not at all."""


class ShortcutLink(Protocol):
    """What a shortcut needs of the service."""

    connection: Connection
    outbox: Outbox

    def flush(self) -> None: ...


class Shortcut:
    """Closed at first. `open` and `close` are for the loop's thread, `write` for one other."""

    def __init__(self, link: ShortcutLink, stream: OutStream) -> None:
        """`stream` has been written to."""
        self._link = link
        self._stream = stream
        self._lock = Lock()
        self._is_open = False
        self._credit = 0
        self._index = 0

    def open(self) -> bool:
        """Lets `write` send, as soon as everything that the loop wrote has left. Whether it did."""
        stream = self._stream
        if self._is_open and self._credit:
            return True
        self.close()
        if stream.pending or not stream.started:
            self._link.flush()
        if stream.pending or stream.closing or stream.error is not None or not stream.started or not stream.credit:
            return False
        with self._lock:
            self._credit, stream.credit = stream.credit, 0
            self._index, self._is_open = stream.index, True
        stream.on_writable = self.close  # called when the stream is given up: before its call is answered
        return True

    def close(self) -> None:
        """Lets `write` send nothing more, from now on; what was lent goes back. What the loop writes leaves again."""
        if not self._is_open:
            return
        stream = self._stream
        with self._lock:
            self._is_open = False
            stream.index = self._index
            stream.credit += self._credit
            self._credit = 0
        stream.on_writable = None

    def write(self, data: bytes) -> bool:
        """Sends `data` now. False, and nothing was sent, where that cannot be done at once: the shortcut is closed, the
        reader is behind, or other frames wait for the pipe."""
        stream = self._stream
        with self._lock:
            if not self._credit or len(data) > _MOST_BYTES // 2:
                return False
            frame = b"".join(encode_chunk(stream.request_id, stream.number, self._index, data))
            if not self._link.outbox.send(frame):
                return False
            self._index += 1
            self._credit -= 1
            return True
