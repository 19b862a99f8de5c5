"""Owns one process that is spoken to over its pipes, seen from the side that started it, in one thread.

It does not know what is said. It stands in for a host where there is none: a call from a command line.
"""

import os
import selectors
import subprocess
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.wire import Connection, ConnectionDamaged, Event, HelloReceived, Role
from cartdeck_sdk.outbox import Outbox

_ROOM_BYTES: Final = 1024 * 1024
_STOP_S: Final = 3.0


class WireProcess:
    """`on_event` sees each event; `on_lost` gets the exit status when the pipe has ended, and may raise. `log` takes
    what the process writes to stderr; without it that goes where ours goes."""

    def __init__(
        self,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        *,
        on_event: Callable[[Event], None],
        on_lost: Callable[[int], None],
        environment: dict[str, str],
        log: BinaryIO | None = None,
    ) -> None:
        self._selector = selector
        self._on_event = on_event
        self._on_lost = on_lost
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to tell of
            )
        except OSError as error:
            raise failure(Code.START_FAILED, f"{command[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write, self._read = self._process.stdin, self._process.stdout
        for pipe in (self._write, self._read):
            os.set_blocking(pipe.fileno(), False)
        self._outbox = Outbox(self._write.fileno())
        self._is_registered = False
        self.is_ready = False
        self.is_over = False
        self.connection = Connection(Role.HOST, software="command line")
        self.connection.send_hello()
        selector.register(self._read, selectors.EVENT_READ, self._on_readable)

    def flush(self) -> None:
        """Hand over what waits, as much as the pipe takes; the rest leaves when it takes more."""
        if self.is_over:
            return
        is_empty = self._outbox.flush()
        while is_empty and self.connection.has_outgoing:
            self._outbox.put(self.connection.outgoing(_ROOM_BYTES))
            is_empty = self._outbox.flush()
        if is_empty == self._is_registered:
            self._is_registered = not is_empty
            if self._is_registered:
                self._selector.register(self._write, selectors.EVENT_WRITE, self.flush)
            else:
                self._selector.unregister(self._write)

    def close(self) -> None:
        """Close its stdin, upon which it leaves, and see to it that it does."""
        if not self.is_over:
            self._end()
        self._read.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _on_readable(self) -> None:
        space = self.connection.buffer()
        try:
            size = os.readv(self._read.fileno(), (space,))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._end()
            self._on_lost(self._process.wait())
            return
        for event in self.connection.received(size):
            if isinstance(event, ConnectionDamaged):
                raise event.error
            if isinstance(event, HelloReceived):
                self.is_ready = True
            self._on_event(event)

    def _end(self) -> None:
        self.is_over = True
        self._selector.unregister(self._read)
        if self._is_registered:
            self._selector.unregister(self._write)
            self._is_registered = False
        self._write.close()
