"""Owns the two ends of a stream: what may be sent, and what was received and not yet taken.

It does not know the pipe: an `OutStream` says to its outlet that it has work, and the connection turns the
pending bytes into CHUNKs when there is credit and room.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire.frames import OWN_BUFFER_BYTES, Buffer
from cartdeck_protocol.wire.violation import LocalProtocolError


class Outlet(Protocol):
    """What a stream needs of its connection."""

    def wake(self, stream: "OutStream") -> None:
        """The stream has something to send."""

    def grant(self, stream: "InStream", chunks: int) -> None:
        """Send a CREDIT for chunks that were taken."""


class OutStream:
    """A stream that this end sends. Writes are merged: chunk bounds carry no meaning.

    `pending_bytes` is what waits for credit or room. `on_writable`, when set, is called once each time the
    pending bytes have left, and when the stream dies; `error` then says why.
    """

    __slots__ = (
        "_outlet", "closed", "closing", "credit", "error", "index", "is_merged", "is_sequence", "media", "name",
        "number", "on_writable", "pending", "pending_bytes", "queued", "request_id", "started",
    )  # fmt: skip

    def __init__(
        self, outlet: Outlet, request_id: int, number: int, *, media: str, name: str, is_sequence: bool, credit: int
    ) -> None:
        self._outlet = outlet
        self.request_id = request_id
        self.number = number
        self.media = media
        self.name = name
        self.is_sequence = is_sequence
        self.credit = credit
        self.index = 0
        self.pending: deque[Buffer] = deque()
        self.pending_bytes = 0
        self.is_merged = True
        """False sends each write as a CHUNK of its own: for measurements, since the bounds carry no meaning."""
        self.started = False
        self.closing = False
        self.closed = False
        self.queued = False
        self.error: CartdeckError | None = None
        self.on_writable: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        """Take `data` for sending; it is never copied before it leaves. Raises what ended the stream."""
        if self.error is not None:
            raise self.error
        if self.closing:
            raise LocalProtocolError(f"write to stream {self.number} of request {self.request_id} after its end")
        if data:
            self.pending.append(data)
            self.pending_bytes += len(data)
        self._outlet.wake(self)

    def close(self) -> None:
        """No more writes; STREAM_END leaves behind what is pending."""
        if not self.closing:
            self.closing = True
            if self.error is None:
                self._outlet.wake(self)

    def kill(self, error: CartdeckError) -> None:
        """The exchange is over: drop what is pending and wake the writer."""
        if self.error is None and not self.closed:
            self.error = error
            self.pending.clear()
            self.pending_bytes = 0
            if self.on_writable is not None:
                self.on_writable()

    def next_payload(self, limit: int) -> Buffer:
        """Up to `limit` of the pending bytes: small writes joined, a large one sliced without a copy."""
        pending = self.pending
        first = pending[0]
        size = len(first)
        if size > limit:
            view = first if isinstance(first, memoryview) else memoryview(first)
            pending[0] = view[limit:]
            self.pending_bytes -= limit
            return view[:limit]
        if len(pending) == 1 or size >= OWN_BUFFER_BYTES or not self.is_merged:
            pending.popleft()
            self.pending_bytes -= size
            return first
        if self.pending_bytes <= limit:
            joined = b"".join(pending)
            pending.clear()
            self.pending_bytes = 0
            return joined
        parts: list[Buffer] = []
        total = 0
        while total + len(pending[0]) <= limit:
            part = pending.popleft()
            total += len(part)
            parts.append(part)
        self.pending_bytes -= total
        return b"".join(parts)


class InStream:
    """A stream that this end receives. The consumer calls `take` for each chunk that it has used up."""

    __slots__ = (
        "_batch", "_outlet", "ended", "index", "is_sequence", "media", "name", "number", "owed", "request_id", "window",
    )  # fmt: skip

    def __init__(
        self, outlet: Outlet, request_id: int, number: int, *, media: str, name: str, is_sequence: bool, credit: int
    ) -> None:
        self._outlet = outlet
        self.request_id = request_id
        self.number = number
        self.media = media
        self.name = name
        self.is_sequence = is_sequence
        self.window = credit
        self.index = 0
        self.owed = 0
        self.ended = False
        self._batch = max(1, credit // 2)

    def take(self, chunks: int = 1) -> None:
        """`chunks` were consumed. Credit goes back in batches of half a window."""
        self.owed += chunks
        if self.owed >= self._batch:
            self.settle()

    def settle(self) -> None:
        """Grant what is owed: call it before waiting for anything."""
        owed = self.owed
        if owed and not self.ended:
            self.owed = 0
            self.window += owed
            self._outlet.grant(self, owed)
