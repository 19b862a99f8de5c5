"""Owns one call made without a host: the cartridge's process is started, asked, and ended.

It does not know how words became arguments. Raw output goes to standard output, progress and log to standard error.
"""

import json
import os
import selectors
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn, cast

from cartdeck_protocol.caps import CapDefinition
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    ChunkReceived,
    Event,
    Exchange,
    ExchangeDamaged,
    Failed,
    Finished,
    HelloReceived,
    ItemDecoder,
    Logged,
    OutStream,
    RequestReceived,
    StreamStarted,
)
from cartdeck_sdk.cap_words import Asked
from cartdeck_sdk.peer_relay import PeerRelay
from cartdeck_sdk.wire_process import WireProcess

_BLOCK_BYTES: Final = 256 * 1024
_CANCEL_S: Final = 2.0
_LOG_LINES: Final = 20


def run_lone_call(package: str, definition: CapDefinition, asked: Asked) -> None:
    """Call a cap of the cartridge in `package`. Raises what the call ended with; CANCELLED after a Ctrl-C."""
    with selectors.DefaultSelector() as selector:
        call = LoneCall(package, definition, asked, selector)
        try:
            call.run()
        except KeyboardInterrupt:
            call.give_up()
            raise failure(Code.CANCELLED, "a signal ended the call") from None
        finally:
            call.close()


class LoneCall:
    """The call, and the loop that carries it."""

    def __init__(self, package: str, definition: CapDefinition, asked: Asked, selector: selectors.BaseSelector) -> None:
        self._definition = definition
        self._asked = asked
        self._selector = selector
        self._exchange: Exchange | None = None
        self._feeders: list[_Feeder] = []
        self._decoder = ItemDecoder()
        self._is_over = False
        self._error: CartdeckError | None = None
        self._told = ("", -1)
        environment = {**os.environ, "CARTDECK_HOST_PID": str(os.getpid())}
        command = (sys.executable, "-P", "-m", "cartdeck_sdk", package)
        # Of use when the process dies: a library that loads a model says hundreds of lines.
        self._log: BinaryIO | None = None if asked.is_verbose else cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115  # closed in close()
        self._process = WireProcess(
            command, selector, on_event=self._on_event, on_lost=self._on_lost, environment=environment, log=self._log
        )
        self._relay = PeerRelay(self._process, selector)

    def run(self) -> None:
        self._turn_until(lambda: self._is_over)
        sys.stdout.buffer.flush()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Send CANCEL, and give the handler a moment to answer it."""
        if self._exchange is not None and not self._is_over:
            self._process.connection.cancel(self._exchange, "interrupted")
            end = time.monotonic() + _CANCEL_S
            self._turn_until(lambda: self._is_over or time.monotonic() >= end, wait_s=0.05)

    def close(self) -> None:
        self._process.close()
        self._relay.close()
        if self._log is not None:
            self._log.close()

    def _turn_until(self, is_done: Callable[[], bool], *, wait_s: float | None = None) -> None:
        while not is_done():
            while sum(feeder.step() for feeder in self._feeders):
                self._process.flush()
            self._relay.step()
            self._process.flush()
            if not is_done():
                for key, _ in self._selector.select(wait_s):
                    key.data()

    def _on_lost(self, status: int) -> NoReturn:
        if self._log is not None:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
            print("".join(f"log: {line}\n" for line in lines), end="", file=sys.stderr)
        raise failure(Code.CARTRIDGE_DIED, f"the cartridge's process ended with status {status}; its log is above")

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HelloReceived):
            self._open()
        elif isinstance(event, RequestReceived):
            self._relay.take(event)
        elif getattr(event, "exchange", None) is self._exchange and self._exchange is not None:
            self._on_own_event(event)
        else:
            owner: Any = getattr(getattr(event, "exchange", None), "owner", None)
            if owner is not None:
                owner.on_caller_event(event)

    def _open(self) -> None:
        connection, values = self._process.connection, self._asked.values
        inline: dict[str, bytes] = {}
        room = connection.their_limits.inline_arguments
        for name, value in values.items():
            argument = self._definition.arguments[name]
            if isinstance(value, bytes) and len(value) <= room and not argument.is_stream and not argument.is_sequence:
                inline[name] = value
                room -= len(value)
        streamed = {name: value for name, value in values.items() if name not in inline}
        self._exchange = connection.request(str(self._definition.urn), inline, complete=not streamed)
        # What a handler wants whole comes first: it begins when the first stream opens.
        for name in sorted(streamed, key=lambda one: not isinstance(streamed[one], bytes)):
            argument, value = self._definition.arguments[name], streamed[name]
            out = connection.open_stream(
                self._exchange, name=name, media=str(argument.media), is_sequence=argument.is_sequence
            )
            if isinstance(value, bytes):
                out.write(value)
                out.close()
            else:
                self._feeders.append(_Feeder(out, value, self._selector))
        if streamed:
            self._feeders.append(_Ending(self._feeders.copy(), self._end_arguments))

    def _end_arguments(self) -> None:
        if self._exchange is not None:
            self._process.connection.end(self._exchange)

    def _on_own_event(self, event: Event) -> None:
        if isinstance(event, StreamStarted):
            if event.payload is not None:
                self._write(event.stream.name, event.stream.is_sequence, event.payload)
        elif isinstance(event, ChunkReceived):
            self._write(event.stream.name, event.stream.is_sequence, event.payload)
            event.stream.take()
            event.stream.settle()
        elif isinstance(event, Logged):
            self._tell(event)
        elif isinstance(event, Finished):
            self._is_over = True
        elif isinstance(event, Failed | ExchangeDamaged):
            self._is_over = True
            self._error = event.error

    def _write(self, name: str, is_sequence: bool, data: bytes) -> None:
        if name != self._asked.output:
            return
        out = sys.stdout.buffer
        if is_sequence:
            for item in self._decoder.feed(data):
                out.write(json.dumps(item, ensure_ascii=False, default=_bytes_as_text).encode() + b"\n")
        else:
            out.write(data)
        out.flush()

    def _tell(self, event: Logged) -> None:
        if self._asked.is_quiet:
            return
        if event.progress is None:
            if event.level != "debug" or self._asked.is_verbose:
                print(f"{event.level}: {event.message}", file=sys.stderr)
            return
        told = (event.phase or "", int(event.progress * 100))
        if told != self._told:
            self._told = told
            parts = (f"{told[1]:3} %", event.phase or "", event.message if event.message != event.phase else "")
            print("  ".join(filter(None, parts)), file=sys.stderr)


class _Feeder:
    """A file on its way into a stream: the next block is read when the one before has left."""

    def __init__(self, out: OutStream, file: BinaryIO, selector: selectors.BaseSelector) -> None:
        self._out = out
        self._file = file
        self._selector = selector
        self._is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self._is_watched = False

    @property
    def is_done(self) -> bool:
        return self._out.closing or self._out.error is not None

    def step(self) -> bool:
        """Whether something was written."""
        if self.is_done or self._out.pending_bytes:
            self._watch(False)
            return False
        if self._is_regular:
            self._fill()
            return True
        self._watch(True)
        return False

    def _fill(self) -> None:
        block = os.read(self._file.fileno(), _BLOCK_BYTES)
        if block:
            self._out.write(block)
        else:
            self._out.close()
            self._watch(False)

    def _watch(self, is_wanted: bool) -> None:
        if is_wanted != self._is_watched and not self._is_regular:
            self._is_watched = is_wanted
            if is_wanted:
                self._selector.register(self._file, selectors.EVENT_READ, self._fill)
            else:
                self._selector.unregister(self._file)


class _Ending(_Feeder):
    """Says once that all arguments are there, when all the others are done."""

    def __init__(self, others: "list[_Feeder]", end: Callable[[], None]) -> None:
        self._others = others
        self._end = end
        self._is_said = False

    def step(self) -> bool:
        if self._is_said or not all(other.is_done for other in self._others):
            return False
        self._is_said = True
        self._end()
        return True


def _bytes_as_text(value: Any) -> Any:
    """JSON has no bytes: a vector of floats is one item of bytes."""
    import base64  # noqa: PLC0415  # few sequences hold bytes

    return {"base64": base64.b64encode(value).decode("ascii")}
