"""Owns the loop's side of the frame pipes: one registered reader, one writer, and when to flush.

It does not know requests: events go to one callback.
"""

import os
from asyncio import AbstractEventLoop, Handle
from collections.abc import Callable
from typing import Final

from cartdeck_protocol.wire import MAX_CONTROL_BACKLOG, Connection, ConnectionDamaged, Event
from cartdeck_sdk.guard import FramePipes
from cartdeck_sdk.outbox import Outbox

HIGH_WATER_BYTES: Final = 1024 * 1024
"""Chunks are put into the outbox up to here; the pipe itself holds as much again."""

_READS_PER_TURN: Final = 4
_ANSWERS_PER_FLUSH: Final = 8
"""Of a crowd of calls. The host works on the first answers while the next are made: that is worth half as many calls
again per second, for an eighth of a system call each."""


class PipeLink:
    """Carries a connection over the two pipes. `on_event` sees each event; `on_end` is called once, with what ended
    the connection or None for a clean end of file."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        connection: Connection,
        pipes: FramePipes,
        *,
        on_event: Callable[[Event], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._pipes = pipes
        self._on_event = on_event
        self._on_end = on_end
        self._flush_handle: Handle | None = None
        self._is_writer_registered = False
        self._is_ended = False
        self._is_reading = False
        self._answers = 0
        self.outbox = Outbox(pipes.write_fd)

    def start(self) -> None:
        os.set_blocking(self._pipes.read_fd, False)
        os.set_blocking(self._pipes.write_fd, False)
        # the reader stays registered: registering it anew for each wait costs 22 µs
        self._loop.add_reader(self._pipes.read_fd, self._on_readable)

    def close(self) -> None:
        """Stop reading; write out what the pipe still takes."""
        if not self._is_ended:
            self._is_ended = True
            self._loop.remove_reader(self._pipes.read_fd)
        self.flush()
        if self._is_writer_registered:
            self._loop.remove_writer(self._pipes.write_fd)
            self._is_writer_registered = False

    def schedule_flush(self) -> None:
        """Flush in the loop's next turn, behind the tasks that are ready now: what a crowd writes leaves together.
        What is written while a read is dealt with leaves at its end."""
        if self._flush_handle is None and not self._is_reading:
            self._flush_handle = self._loop.call_soon(self.flush)

    def answered(self) -> None:
        """A terminal waits: to be flushed with a few others."""
        self._answers += 1
        if self._answers >= _ANSWERS_PER_FLUSH:
            self.flush()
        else:
            self.schedule_flush()

    def flush(self) -> None:
        """Hand the connection's bytes to the pipe, as much as it takes."""
        self._answers = 0
        handle, self._flush_handle = self._flush_handle, None
        if handle is not None:
            handle.cancel()
        connection, outbox = self._connection, self.outbox
        while True:
            if connection.has_outgoing:
                room = HIGH_WATER_BYTES - outbox.waiting_bytes
                outbox.put(connection.outgoing(room))
            if not outbox.flush():
                break
            if not connection.has_outgoing:
                self._unregister_writer()
                return
        if outbox.waiting_bytes > HIGH_WATER_BYTES + MAX_CONTROL_BACKLOG + connection.max_chunk:
            self._end(ConnectionError(f"the host does not read: {outbox.waiting_bytes} bytes of frames wait for it"))
            return
        if not self._is_writer_registered:
            self._is_writer_registered = True
            self._loop.add_writer(self._pipes.write_fd, self.flush)

    def _unregister_writer(self) -> None:
        if self._is_writer_registered:
            self._is_writer_registered = False
            self._loop.remove_writer(self._pipes.write_fd)

    def _on_readable(self) -> None:
        self._is_reading = True
        try:
            self._read()
        finally:
            self._is_reading = False
        if self._connection.has_outgoing:
            self.flush()

    def _read(self) -> None:
        connection = self._connection
        for _ in range(_READS_PER_TURN):
            space = connection.buffer()
            try:
                size = os.readv(self._pipes.read_fd, (space,))
            except BlockingIOError:
                break
            except OSError as error:
                self._end(error)
                return
            if size == 0:
                self._end(None if connection.is_between_frames else ConnectionError("the host's bytes end in a frame"))
                return
            for event in connection.received(size):
                if type(event) is ConnectionDamaged:
                    connection.refuse(event.error)
                    self.flush()
                    self._end(event.error)
                    return
                self._on_event(event)
            if size < len(space):
                break

    def _end(self, error: Exception | None) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._loop.remove_reader(self._pipes.read_fd)
            self._on_end(error)
