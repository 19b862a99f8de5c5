"""Owns the record of one request that the kit made: what came for it, when, and how it ended.

It does not know the pipe; a conversation feeds it.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import Exchange, InStream


@dataclass(slots=True)
class Received:
    """One output stream."""

    name: str
    media: str
    is_sequence: bool
    chunks: list[bytes] = field(default_factory=list[bytes])

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)


class Call:
    """One request. With `takes` False no credit is granted for its outputs until `release` is called."""

    def __init__(self, cap: str, *, takes: bool = True) -> None:
        self.cap = cap
        self.takes = takes
        self.exchange: Exchange
        self.outputs: list[Received] = []
        self.has_logged = False
        self.error: CartdeckError | None = None
        """The terminal was an ERR, or damage that the wire's library found."""
        self.is_finished = False
        """The terminal was END."""
        self.is_damaged = False
        self.is_cancelled = False
        """The kit has sent a CANCEL, and waits for the terminal."""
        self.provenance: dict[str, Any] = {}
        self.peer_calls: list[str] = []
        self.refused_peers: list[str] = []
        """Caps that it called and the kit was not told how to answer."""
        self.started_s = self.last_s = time.monotonic()
        self.output_at_s: float | None = None
        """When its first output began."""
        self.ended_s = 0.0
        self.longest_silence_s = 0.0
        self.chunks = self.received_bytes = 0
        self._streams: dict[int, Received] = {}
        self._untaken: list[InStream] = []

    @property
    def is_over(self) -> bool:
        return self.is_finished or self.error is not None

    @property
    def took_s(self) -> float:
        return self.ended_s - self.started_s

    @property
    def has_begun(self) -> bool:
        """Whether anything came for it."""
        return bool(self.outputs or self.has_logged or self.peer_calls or self.is_over)

    @property
    def main(self) -> bytes:
        """The bytes of the main output."""
        return b"".join(output.data for output in self.outputs if not output.name)

    @property
    def ending(self) -> str:
        """How it ended, for a message."""
        if self.error is not None:
            return f"ERR {self.error.code_name}: {self.error.message}"
        return "END" if self.is_finished else "no terminal"

    def is_heard(self) -> None:
        """A frame of it came, or one of its own peer calls."""
        now_s = time.monotonic()
        self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_s)
        self.last_s = now_s

    def forgets_silence(self) -> None:
        """The kit kept it waiting until now."""
        self.last_s = time.monotonic()

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        self.output_at_s = self.output_at_s or time.monotonic()
        received = Received(stream.name, stream.media, stream.is_sequence)
        self.outputs.append(received)
        self._streams[stream.number] = received
        if payload is not None:
            self.received_bytes += len(payload)
            received.chunks.append(payload)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        self._streams[stream.number].chunks.append(payload)
        self.received_bytes += len(payload)
        self.chunks += 1
        if self.takes:
            stream.take()
        else:
            self._untaken.append(stream)

    def settle(self, stream: InStream) -> None:
        """Grant what is owed: the kit is about to wait."""
        if self.takes:
            stream.settle()

    def release(self) -> None:
        """From now on its outputs are taken as they come."""
        self.takes = True
        untaken, self._untaken = self._untaken, []
        for stream in untaken:
            stream.take()
            stream.settle()

    def end(self, *, error: CartdeckError | None = None, provenance: dict[str, Any] | None = None) -> None:
        if not self.is_over:
            self.error, self.is_finished = error, error is None
            self.provenance = provenance or {}
            self.ended_s = time.monotonic()
