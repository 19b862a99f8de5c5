"""Owns one conversation with one process: bytes carried both ways, calls made, peer calls answered, waits bounded.

It does not know what is being checked. One thread drives it; nothing goes on between two waits.
"""

import fcntl
import os
import select
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Final

from cartdeck_conformance.call import Call
from cartdeck_conformance.durations import Durations
from cartdeck_conformance.peer_desk import PeerDesk
from cartdeck_conformance.peers import Peers
from cartdeck_conformance.process import CartridgeProcess
from cartdeck_conformance.tap import Tap
from cartdeck_conformance.verdict import Fault, NotExercised, Stopped
from cartdeck_conformance.watch import Tell, Watch
from cartdeck_protocol.wire import (
    ChunkReceived,
    Connection,
    ConnectionDamaged,
    ConnectionRefused,
    Event,
    ExchangeDamaged,
    Failed,
    Finished,
    HelloReceived,
    Limits,
    Logged,
    Role,
    StreamStarted,
)

_TURN_S: Final = 0.05
_LOOK_S: Final = 0.0002
_MOST_WAITING_BYTES: Final = 1024 * 1024
SOFTWARE: Final = "cartdeck_conformance"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all conversations with one cartridge share."""

    command: tuple[str, ...]
    durations: Durations
    peers: Peers
    tell: Tell
    folder: Path | None = None
    """Where the processes work; None for where this one does."""
    environment: Mapping[str, str] | None = None
    """What they get in place of this process's environment."""
    stop: ThreadEvent = field(default_factory=ThreadEvent)
    """Set by whoever wants the kit to end: the next wait raises Stopped."""


class Conversation:
    """A context manager: the process is there inside, and nothing of it afterwards."""

    def __init__(self, setup: Setup, *, limits: Limits | None = None) -> None:
        self.setup = setup
        self.durations = setup.durations
        self.process = CartridgeProcess(
            setup.command, setup.durations, folder=setup.folder, environment=setup.environment
        )
        self.connection = Connection(Role.HOST, limits=limits, software=SOFTWARE)
        self._tap = Tap()
        self.watch = Watch(self.connection, self._tap, setup.tell)
        self.peers = PeerDesk(self.connection, setup.peers, setup.tell)
        self.hello: HelloReceived | None = None
        self.refusals: list[ConnectionRefused] = []
        self.next_write: Callable[[], int] | None = None
        """How many bytes the next write may have at most; it waits until the one before was read."""
        self.is_at_end = False
        """Its stdout has ended, or what came is no frames."""
        self.is_damaged = False
        self.received_bytes = 0
        self._waiting = bytearray()

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end(self.durations.exit_s)

    # what is said

    def greet(self) -> HelloReceived:
        """Say HELLO and wait for the cartridge's. Raises Fault."""
        self.connection.send_hello()
        self.until(lambda: self.hello is not None, self.durations.hello_s, "HELLO")
        assert self.hello is not None
        return self.hello

    def call(self, cap: str, arguments: Mapping[str, bytes] | None = None, *, takes: bool = True) -> Call:
        """Open a request whose arguments all travel inside it."""
        return self.open(cap, arguments, takes=takes, complete=True)

    def open(
        self, cap: str, arguments: Mapping[str, bytes] | None = None, *, takes: bool = True, complete: bool = False
    ) -> Call:
        """Open a request; unless it is complete, streams may follow on `connection`, and then its END."""
        call = Call(cap, takes=takes)
        call.exchange = self.connection.request(cap, arguments, complete=complete)
        call.exchange.owner = call
        return call

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are, behind everything that was said before."""
        self._collect()
        self._waiting += data

    @property
    def is_writing(self) -> bool:
        """Whether bytes wait for the pipe."""
        return bool(self._waiting)

    # what is waited for

    def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Carry bytes until the condition holds. Raises Fault when the time is over or the cartridge has left, and
        NotExercised when its bytes are no frames any more, which another check says."""
        if not self.wait(condition, limit_s):
            if self.is_damaged:
                raise NotExercised(f"no {what}: its frames could not be read any more, and another check says why")
            raise Fault(f"no {what} {self.why_not(limit_s)}")

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Carry bytes until the condition holds, at most so long, or until the cartridge has left; whether it does."""
        end = time.monotonic() + limit_s
        while not condition():
            left_s = end - time.monotonic()
            if left_s <= 0 or self.is_at_end:
                return condition()
            self._turn(min(left_s, _TURN_S))
        self._flush()
        return True

    def finish(self, call: Call, limit_s: float | None = None) -> None:
        """Wait for the terminal of a call. Raises Fault."""
        limit_s = self.durations.answer_s if limit_s is None else limit_s
        self.until(lambda: call.is_over, limit_s, f"terminal of {call.cap}")

    def listen(self, seconds: float) -> None:
        """Carry bytes for so long: what must not come is seen now."""
        self.wait(lambda: False, seconds)
        self.watch.look()

    def why_not(self, limit_s: float) -> str:
        """Why something did not come, for a message: "within 15 s", "since the process ended with status 1"."""
        if self.is_at_end:
            self.process.wait(0.5)
            if self.process.returncode is None:
                return "since it has closed its stdout, though the process still runs"
            return f"since the process {self.process.exit_text}{self.process.log_tail}"
        return f"within {limit_s:g} s"

    # bytes

    def _collect(self) -> None:
        room = _MOST_WAITING_BYTES - len(self._waiting)
        if self.connection.has_outgoing:
            for buffer in self.connection.outgoing(room):
                self._waiting += buffer

    def _flush(self) -> None:
        self._collect()
        if self._waiting and self.process.stdin_is_open:
            self._write()

    def _turn(self, wait_s: float) -> None:
        if self.setup.stop.is_set():
            raise Stopped
        self._collect()
        process = self.process
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        if process.stderr_is_open:
            poll.register(process.stderr, select.POLLIN)
        if self._waiting and process.stdin_is_open:
            poll.register(process.stdin, select.POLLOUT)
        for descriptor, _ in poll.poll(wait_s * 1000):
            if descriptor == process.stdin:
                self._write()
            elif descriptor == process.stderr:
                process.read_stderr()
            else:
                self._read()

    def _write(self) -> None:
        if self.next_write is not None and not self._is_read():
            time.sleep(_LOOK_S)
            return
        try:
            most = len(self._waiting) if self.next_write is None else self.next_write()
            count = os.write(self.process.stdin, self._waiting[:most])
        except BlockingIOError:
            return
        except OSError:  # it has closed its stdin: what it said last is still read
            self.process.close_stdin()
            self._waiting.clear()
            return
        del self._waiting[:count]

    def _is_read(self) -> bool:
        """Whether the cartridge has read all that was written; true where the system does not tell."""
        try:
            return not any(fcntl.ioctl(self.process.stdin, termios.FIONREAD, bytes(4)))
        except OSError:
            return True

    def _read(self) -> None:
        space = self.connection.buffer()
        try:
            size = os.readv(self.process.stdout, [space])
        except BlockingIOError:
            return
        if size == 0:
            self.is_at_end = True
            return
        self.received_bytes += size
        for frame in self._tap.feed(bytes(space[:size])):
            self.watch.on_frame(frame)
        calls: set[Call] = set()
        for event in self.connection.received(size):
            self._on_event(event)
            if isinstance(event, ChunkReceived) and isinstance(event.exchange.owner, Call):
                calls.add(event.exchange.owner)
        for call in calls:
            for stream in call.exchange.in_streams.values():
                call.settle(stream)
        self.watch.look()

    def _on_event(self, event: Event) -> None:
        is_breach = self.watch.on_event(event)
        if isinstance(event, HelloReceived):
            self.hello = event
        elif isinstance(event, ConnectionDamaged):
            self.is_at_end = self.is_damaged = True
        elif isinstance(event, ConnectionRefused):
            self.refusals.append(event)
        elif not self.peers.on_event(event):
            owner = getattr(getattr(event, "exchange", None), "owner", None)
            if isinstance(owner, Call):
                owner.is_damaged = owner.is_damaged or is_breach
                self._on_call_event(owner, event)

    def _on_call_event(self, call: Call, event: Event) -> None:
        call.is_heard()
        match event:
            case StreamStarted():
                call.on_stream(event.stream, event.payload)
            case ChunkReceived():
                call.on_chunk(event.stream, event.payload)
            case Logged():
                call.has_logged = True
            case Finished():
                call.end(provenance=event.provenance)
            case Failed():
                call.end(error=event.error)
            case ExchangeDamaged():
                call.end(error=event.error)
            case _:
                return
        if call.is_over:
            self.watch.on_call_over(call, self.durations.silence_s)
