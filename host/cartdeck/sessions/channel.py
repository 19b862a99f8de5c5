"""Owns the two frame pipes of one process: bytes in to the connection, its bytes out.

It does not know what frames mean. All of it runs on the event loop's thread, so nothing here is locked.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cartdeck.sessions.obituary import mistake_of_ours
from cartdeck.sessions.process import Pipes
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import MAX_CONTROL_BACKLOG, Buffer, Event

_ROOM_BYTES: Final = 1024 * 1024
"""How much leaves in one round: what an enlarged pipe holds, so that more would only wait in a list."""
_ROUNDS: Final = 8
"""Rounds of writing in one turn of the loop; a reader as fast as that must not keep the loop from the others."""
_LAST_WORDS_S: Final = 0.1
_MOST_READ_BYTES: Final = 2 * 1024 * 1024
_LEAST_READ_BYTES: Final = 16 * 1024
"""Also the size below which no time is taken: what comes with a plain call is less."""
_LONG_S, _SHORT_S = 0.010, 0.002
"""2 MiB of chunks take 1 ms, 2 MiB of frames of 20 bytes a second, which the loop's other calls would wait for. So what
one turn reads is halved while that takes longer than the one, and doubled while it takes less than the other."""
_MOST_BUFFERS: Final = 1024  # IOV_MAX of Linux and macOS


class Line(Protocol):
    """A connection as its channel sees it; a trace puts itself in between."""

    @property
    def error(self) -> CartdeckError | None: ...

    @property
    def has_outgoing(self) -> bool: ...

    def buffer(self) -> memoryview: ...

    def received(self, size: int) -> list[Event]: ...

    def outgoing(self, room: int = ...) -> list[Buffer]: ...


class Channel:
    """Reads and writes for one connection.

    `on_events` gets what was received; `on_lost` is called once, when the pipe from the process is at its end or
    broken: with None for an end of file, else with the error. Reading goes on until then, also while the process is
    being stopped.
    """

    def __init__(
        self,
        connection: Line,
        pipes: Pipes,
        *,
        on_events: Callable[[list[Event]], None],
        on_lost: Callable[[CartdeckError | None], None],
    ) -> None:
        self.connection = connection
        self.read_bytes = 0
        self.written_bytes = 0
        self._on_events = on_events
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._read: int | None = pipes.read
        self._write: int | None = pipes.write
        self._unsent: deque[Buffer] = deque()
        self._unsent_control_bytes = 0
        self._is_blocked = False
        self._is_flush_due = False
        self._most_read = _MOST_READ_BYTES
        # Registered once and kept: asyncio's reader costs nothing while it waits, where waiting anew for each read
        # was measured at 22 µs of a call's 79.
        self._loop.add_reader(pipes.read, self._on_readable)

    @property
    def is_reading(self) -> bool:
        return self._read is not None

    @property
    def is_writing(self) -> bool:
        return self._write is not None

    @property
    def is_blocked(self) -> bool:
        """The process does not read: the pipe to it is full."""
        return self._is_blocked

    # -- reading

    def _on_readable(self) -> None:
        if self._read is None:
            return
        connection = self.connection
        try:
            # Straight into the connection's buffer: no bytes object and no copy in between.
            space = connection.buffer()
            size = os.readv(self._read, [space if len(space) <= self._most_read else space[: self._most_read]])
            begun_s = self._loop.time() if size >= _LEAST_READ_BYTES else 0.0
            events = connection.received(size) if size else []
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(failure(Code.CARTRIDGE_DIED, f"its pipe cannot be read: {error.strerror}"))
            return
        except Exception as mistake:  # what was read so far cannot be told from what was not: there is no going on
            self._lose(mistake_of_ours("what it wrote", mistake))
            if isinstance(mistake, MemoryError):
                return
            raise
        if size == 0:
            self._lose(None)
            return
        self.read_bytes += size
        self._on_events(events)
        if begun_s:
            self._pace(self._loop.time() - begun_s, size)
        if connection.error is not None:
            self._lose(connection.error)
        elif connection.has_outgoing:
            # Behind the tasks that these events woke, so that what they send leaves in the same write.
            self.flush_soon()

    def _pace(self, taken_s: float, size: int) -> None:
        """`size` bytes took so long to be dealt with: the next turn reads less, or more again."""
        if taken_s > _LONG_S:
            self._most_read = max(size // 2, _LEAST_READ_BYTES)
        elif taken_s < _SHORT_S and self._most_read < _MOST_READ_BYTES:
            self._most_read *= 2

    def _lose(self, error: CartdeckError | None) -> None:
        if self._read is not None:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = None
            self._on_lost(error)

    # -- writing

    def flush_soon(self) -> None:
        """Send what is there at the end of this turn of the loop: many callers' frames leave in one write."""
        if not self._is_flush_due and self._write is not None:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()

    def flush(self) -> None:
        """Send now what the pipe takes; the rest follows when there is room."""
        if self._write is None:
            return
        if self._is_blocked:
            self._hold_control()
            return
        for _ in range(_ROUNDS):
            self._unsent.extend(self.connection.outgoing(_ROOM_BYTES))
            if not self._write_unsent():
                return
            if not self.connection.has_outgoing:
                return
        self.flush_soon()

    def _hold_control(self) -> None:
        """The pipe is full. Control frames wait here, where they are counted; chunks wait in their streams."""
        for buffer in self.connection.outgoing(0):
            self._unsent.append(buffer)
            self._unsent_control_bytes += len(buffer)
        if self._unsent_control_bytes > MAX_CONTROL_BACKLOG:
            self._break(
                failure(
                    Code.PROTOCOL_VIOLATION,
                    f"it did not read {self._unsent_control_bytes} bytes of control frames; "
                    f"at most {MAX_CONTROL_BACKLOG} are kept for it",
                )
            )

    def _write_unsent(self) -> bool:
        """Write until nothing is left. False when the pipe is full, and a writer waits; or when it is gone."""
        unsent = self._unsent
        while unsent:
            assert self._write is not None
            batch = list(unsent) if len(unsent) <= _MOST_BUFFERS else [unsent[i] for i in range(_MOST_BUFFERS)]
            try:
                size = os.writev(self._write, batch)
            except BlockingIOError:
                self._wait_for_room()
                return False
            except OSError as error:
                self._break(failure(Code.CARTRIDGE_DIED, f"its pipe cannot be written: {error.strerror}"))
                return False
            self.written_bytes += size
            while unsent and size >= len(unsent[0]):
                size -= len(unsent.popleft())
            if size:
                unsent[0] = memoryview(unsent[0])[size:]
        self._unsent_control_bytes = 0
        return True

    def _wait_for_room(self) -> None:
        # Only now: a writer that is always registered would wake the loop all the time.
        if not self._is_blocked:
            assert self._write is not None
            self._is_blocked = True
            self._loop.add_writer(self._write, self._on_writable)

    def _on_writable(self) -> None:
        if self._write is not None and self._write_unsent():
            self._loop.remove_writer(self._write)
            self._is_blocked = False
            self.flush()

    def _break(self, error: CartdeckError) -> None:
        """The process cannot be reached any more. What it wrote before is still read, up to the end of file."""
        had_ended = self._write is None
        self.close_writing()
        if not had_ended:
            # Later: what the process wrote before it went is still to be read, and the end of file says more.
            self._loop.call_later(_LAST_WORDS_S, self._lose, error)

    # -- the end

    def close_writing(self) -> None:
        """Close the process's stdin: it is asked to leave. What was not sent is dropped."""
        if self._write is not None:
            if self._is_blocked:
                self._loop.remove_writer(self._write)
            with contextlib.suppress(OSError):
                os.close(self._write)
            self._write = None
            self._unsent.clear()

    def close(self) -> None:
        """Close both pipes, without a call of `on_lost`."""
        self.close_writing()
        if self._read is not None:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = None
