"""Owns the peer calls of a cartridge that runs without a host: they are carried to `cartdeck serve-peers` and back.

It does not know who serves a cap. The desk is a process, started when the first peer call comes; it speaks the wire as
a cartridge does.
"""

import os
import selectors
import shutil
import sys
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    ArgumentsEnded,
    CancelReceived,
    ChunkReceived,
    Connection,
    Event,
    Exchange,
    ExchangeDamaged,
    Failed,
    Finished,
    HelloReceived,
    InStream,
    Logged,
    OutStream,
    RequestReceived,
    StreamEnded,
    StreamStarted,
)
from cartdeck_sdk.wire_process import WireProcess

_MOST_WAITING_BYTES: Final = 1024 * 1024


class PeerRelay:
    """All peer calls of one process."""

    def __init__(self, caller: WireProcess, selector: selectors.BaseSelector) -> None:
        self._caller = caller
        self._selector = selector
        self._desk: WireProcess | None = None
        self._calls: list[RelayedCall] = []

    def take(self, event: RequestReceived) -> None:
        """A peer call begins."""
        try:
            desk = self._desk or self._start_desk(event.cap)
        except CartdeckError as error:
            self._caller.connection.fail(event.exchange, error)
            return
        call = RelayedCall(self._caller.connection, event)
        self._calls.append(call)
        if desk.is_ready:
            call.open(desk.connection)

    def step(self) -> None:
        """Pass on credit, and hand over what waits."""
        for call in self._calls:
            call.step()
        self._calls = [call for call in self._calls if call.is_open]
        if self._desk is not None:
            self._desk.flush()

    def close(self) -> None:
        if self._desk is not None:
            self._desk.close()

    def _start_desk(self, cap: str) -> WireProcess:
        beside = Path(sys.executable).parent / "cartdeck"
        program = str(beside) if beside.is_file() else shutil.which("cartdeck")
        if program is None:
            message = f"it calls {cap} of another cartridge, and that takes a host: the program cartdeck is not here"
            raise failure(Code.CARTRIDGE_UNAVAILABLE, message)
        environment = {name: value for name, value in os.environ.items() if name != "CARTDECK_HOST_PID"}
        self._desk = WireProcess(
            (program, "serve-peers"),
            self._selector,
            on_event=self._on_desk_event,
            on_lost=self._on_desk_lost,
            environment=environment,
        )
        return self._desk

    def _on_desk_event(self, event: Event) -> None:
        if isinstance(event, HelloReceived):
            assert self._desk is not None
            for call in self._calls:
                call.open(self._desk.connection)
            return
        exchange: Exchange | None = getattr(event, "exchange", None)
        if exchange is not None and exchange.owner is not None:
            exchange.owner.on_desk_event(event)

    def _on_desk_lost(self, status: int) -> None:
        self._desk = None
        error = failure(Code.CARTRIDGE_DIED, f"`cartdeck serve-peers` ended with status {status}; its words are above")
        for call in self._calls:
            call.fail(error)


class RelayedCall:
    """One peer call: `caller` is the connection on which it came."""

    def __init__(self, caller: Connection, event: RequestReceived) -> None:
        self._caller = caller
        self._desk: Connection | None = None
        self._asked = event
        self._asked_for = event.exchange
        self._answering: Exchange | None = None
        self._early: list[Event] = []
        self._pumps: dict[InStream, _Pump] = {}
        event.exchange.owner = self

    @property
    def is_open(self) -> bool:
        return self._asked_for.is_open or (self._answering is not None and self._answering.is_open)

    def open(self, desk: Connection) -> None:
        """The desk is there: ask it, and tell it what came meanwhile."""
        self._desk = desk
        self._answering = desk.request(self._asked.cap, self._asked.arguments, complete=self._asked.complete)
        self._answering.owner = self
        early, self._early = self._early, []
        for event in early:
            self.on_caller_event(event)

    def on_caller_event(self, event: Event) -> None:
        desk, answering = self._desk, self._answering
        if desk is None or answering is None:
            self._early.append(event)
        elif isinstance(event, CancelReceived | ExchangeDamaged):
            desk.cancel(answering, event.reason if isinstance(event, CancelReceived) else event.error.message)
        elif isinstance(event, ArgumentsEnded):
            desk.end(answering)
        else:
            self._carry(event, desk, answering)

    def on_desk_event(self, event: Event) -> None:
        if isinstance(event, Finished):
            if self._asked_for.is_open:
                self._caller.end(self._asked_for, progress=event.progress, provenance=event.provenance)
        elif isinstance(event, Failed | ExchangeDamaged):
            self.fail(event.error)
        elif isinstance(event, Logged):
            if self._asked_for.is_open:
                self._caller.log(
                    self._asked_for,
                    event.level,
                    event.message,
                    progress=event.progress,
                    phase=event.phase,
                    work=event.work,
                    total=event.total,
                )
        else:
            self._carry(event, self._caller, self._asked_for)

    def fail(self, error: CartdeckError) -> None:
        self._caller.fail(self._asked_for, error)

    def step(self) -> None:
        for pump in self._pumps.values():
            pump.step()

    def _carry(self, event: Event, to: Connection, exchange: Exchange) -> None:
        """A piece of a stream, from one side to the other."""
        if isinstance(event, StreamStarted):
            source = event.stream
            out = to.open_stream(exchange, name=source.name, media=source.media, is_sequence=source.is_sequence)
            pump = self._pumps[source] = _Pump(source, out)
            if event.payload is not None:
                pump.write(event.payload, chunks=0)
                out.close()
        elif isinstance(event, ChunkReceived):
            self._pumps[event.stream].write(event.payload, chunks=1)
        elif isinstance(event, StreamEnded):
            self._pumps[event.stream].out.close()


class _Pump:
    """One stream: what came is taken when it is on its way to the other side."""

    def __init__(self, source: InStream, out: OutStream) -> None:
        self._source = source
        self._owed = 0
        self.out = out

    def write(self, data: bytes, *, chunks: int) -> None:
        if self.out.error is None:
            self.out.write(data)
        self._owed += chunks

    def step(self) -> None:
        if self._owed and self.out.pending_bytes < _MOST_WAITING_BYTES:
            owed, self._owed = self._owed, 0
            self._source.take(owed)
            self._source.settle()
