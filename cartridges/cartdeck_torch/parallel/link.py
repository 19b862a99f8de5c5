"""Owns frames between the leader and a rank: one connection over two pipes, read and written by blocking calls.

It does not know what is asked.
"""

import os
from collections.abc import Callable, Generator
from threading import Lock
from typing import TypeVar

from cartdeck_protocol.wire import Connection, Event, Role

T = TypeVar("T")


class Link:
    """One end. A thread reads `events`; any thread may `send`."""

    def __init__(self, role: Role, *, read_fd: int, write_fd: int) -> None:
        self._connection = Connection(role, software="cartdeck_torch rank")
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lock = Lock()
        self._is_closed = False

    def send(self, command: Callable[[Connection], T]) -> T:
        """`command(connection)`, and what it wrote leaves. BrokenPipeError where the other end is gone."""
        with self._lock:
            if self._is_closed:
                raise BrokenPipeError("the other end is gone")
            result = command(self._connection)
            self._flush()
        return result

    def close(self) -> None:
        """Nothing is sent any more: the descriptors may be another's soon."""
        with self._lock:
            self._is_closed = True

    def events(self) -> Generator[Event]:
        """What comes, up to the end of the pipe."""
        while True:
            try:
                size = os.readv(self._read_fd, (self._connection.buffer(),))
            except OSError:  # it was closed at this end
                return
            if not size:
                return
            with self._lock:
                found = self._connection.received(size)
                try:
                    self._flush()
                except OSError:
                    found.clear()  # nobody is there to whom an answer could go
            yield from found

    def _flush(self) -> None:
        for buffer in self._connection.outgoing():
            rest = memoryview(buffer)
            while rest:
                rest = rest[os.write(self._write_fd, rest) :]
