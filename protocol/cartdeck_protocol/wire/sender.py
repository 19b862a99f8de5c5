"""Owns the sending half of a connection, and the state that both halves share.

It does not know what is received. Bytes to send are collected by `outgoing`, which also cuts streams into chunks, so
that credit, merging and the order of terminals live in one place.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.frames import Buffer, encode, encode_chunk, encode_with_payload
from cartdeck_protocol.wire.kinds import API_VERSION, PROTOCOL_VERSION, Kind
from cartdeck_protocol.wire.limits import MAX_CONTROL, MAX_HELLO, Limits
from cartdeck_protocol.wire.stream import InStream, OutStream
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError

FEATURES: Final = frozenset({"credit", "inline-arguments", "whole-streams"})
_MAX_MESSAGE: Final = 8 * 1024


class Role(Enum):
    """Which end this is; it decides the parity of ids, who may say HEARTBEAT, and who speaks first."""

    HOST = 0
    CARTRIDGE = 1


class Sender:
    """The commands of one end: each adds to the bytes that `outgoing` returns."""

    def __init__(self, role: Role, *, limits: Limits | None = None, manifest: bytes = b"", software: str = "") -> None:
        self.role = role
        self.limits = limits or Limits()
        self.manifest = manifest
        self.software = software
        self.their_limits = self.limits
        self.max_chunk = self.limits.max_chunk
        self.features: frozenset[str] = frozenset()
        self.is_greeted = False
        self.hello_sent = False
        self.error: RemoteProtocolError | None = None
        self.exchanges: dict[int, Exchange] = {}
        self.last_own_id = -role.value  # 0 is the connection itself: the host begins at 2, the cartridge at 1
        self.last_their_id = 0
        self.stragglers = 0
        self.strays = 0
        self.bad_progress = 0
        self._control: list[Buffer] = []
        self._ready: deque[OutStream] = deque()

    @property
    def has_outgoing(self) -> bool:
        return bool(self._control or self._ready)

    def outgoing(self, room: int = 1 << 62) -> list[Buffer]:
        """The bytes to send now: all control frames, and chunks while there is credit and `room` bytes are not full.

        Streams take turns, a chunk each. Call it again when there is room; `has_outgoing` says whether to.
        """
        buffers, self._control = self._control, []
        ready = self._ready
        while ready and room > 0:
            stream = ready.popleft()
            stream.queued = False
            if stream.error is None:
                room -= self._advance(stream, buffers)
        return buffers

    def send_hello(self) -> None:
        """The host says it first; a cartridge's leaves as the answer to it."""
        if self.hello_sent:
            raise LocalProtocolError("HELLO was sent before")
        self.hello_sent = True
        meta: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "api": API_VERSION,
            "limits": self.limits.to_wire(),
            "features": sorted(FEATURES),
            "software": self.software,
        }
        if self.role is Role.CARTRIDGE:
            meta["manifest"] = self.manifest
        self._control.append(_frame({1: 0, 2: 0, 5: meta}, MAX_HELLO))

    def request(
        self,
        cap: str,
        arguments: Mapping[str, bytes] | None = None,
        *,
        complete: bool = True,
        parent: Exchange | None = None,
    ) -> Exchange:
        """Open an exchange. With `complete` no argument stream follows, else `open_stream` them and `end` it.

        A cartridge's peer call names the request that it is made for as its `parent`."""
        self.last_own_id += 2
        exchange = Exchange(self.last_own_id, is_requester=True)
        meta: dict[str, Any] = {}
        if arguments:
            meta["arguments"] = dict(arguments)
        if complete:
            meta["complete"] = True
        if parent is not None:
            meta["parent"] = parent.id
        fields: dict[int, Any] = {1: 1, 2: exchange.id, 10: cap}
        if meta:
            fields[5] = meta
        frame = _frame(fields, MAX_CONTROL)
        self.exchanges[exchange.id] = exchange
        self._control.append(frame)
        return exchange

    def open_stream(
        self, exchange: Exchange, *, name: str = "", media: str = "", is_sequence: bool = False
    ) -> OutStream:
        """A stream of arguments (as requester: `name` says which) or of an output (as responder; "" is the main)."""
        number = exchange.next_stream
        if number >= self.their_limits.streams_per_request:
            raise failure(
                Code.UNSUPPORTED, f"one request carries at most {self.their_limits.streams_per_request} streams"
            )
        exchange.next_stream = number + 1
        stream = OutStream(
            self,
            exchange.id,
            number,
            media=media,
            name=name,
            is_sequence=is_sequence,
            credit=self.their_limits.initial_credit,
        )
        if exchange.is_open and not exchange.cancelled:
            exchange.out_streams[number] = stream
            self.wake(stream)
        else:
            stream.kill(failure(Code.CANCELLED, "the call is over"))
        return stream

    def end(
        self, exchange: Exchange, *, progress: float | None = None, provenance: Mapping[str, Any] | None = None
    ) -> None:
        """As requester: no more arguments. As responder: success, the terminal, which leaves when this end's
        streams have left; streams still open are closed first."""
        if not exchange.is_open or exchange.end_waiting is not None:
            return
        meta: dict[str, Any] = {}
        if not exchange.is_requester:
            meta["progress"] = 1.0 if progress is None else _fraction(progress)
            if provenance:
                meta["provenance"] = dict(provenance)
            _frame({1: 4, 2: exchange.id, 5: meta}, MAX_CONTROL)  # too large: raised here, to the one who can mend it
        for stream in exchange.out_streams.values():
            stream.close()
        exchange.end_waiting = meta
        if not exchange.out_streams:
            self._send_end(exchange, self._control)

    def fail(self, exchange: Exchange, error: CartdeckError) -> None:
        """As responder: failure, the terminal. What is pending is dropped."""
        if not exchange.is_open:
            return
        self._forget(exchange, error)
        meta = error.to_wire()
        meta["message"] = meta["message"][:_MAX_MESSAGE]
        try:
            frame = _frame({1: 6, 2: exchange.id, 5: meta}, MAX_CONTROL)
        except (CartdeckError, TypeError, ValueError):  # details too large, or no data: the rest must arrive
            meta.pop("details", None)
            frame = _frame({1: 6, 2: exchange.id, 5: meta}, MAX_CONTROL)
        self._control.append(frame)

    def log(
        self,
        exchange: Exchange | None,
        level: str,
        message: str,
        *,
        progress: float | None = None,
        phase: str | None = None,
        work: float | None = None,
        total: float | None = None,
    ) -> None:
        """A line, or a progress, of an exchange; of the connection itself when it is None. Credit never holds it."""
        if exchange is not None and (not exchange.is_open or exchange.end_waiting is not None):
            return
        meta: dict[str, Any] = {"level": level, "message": message[:_MAX_MESSAGE]}
        if progress is not None and isfinite(progress):
            meta["progress"] = _fraction(progress)
        if phase is not None:
            meta["phase"] = phase[:200]
        if work is not None and isfinite(work):
            meta["work"] = work
        if total is not None and isfinite(total):
            meta["total"] = total
        self._control.append(encode({1: 5, 2: 0 if exchange is None else exchange.id, 5: meta}))

    def cancel(self, exchange: Exchange, reason: str = "") -> None:
        """As requester: give up. What comes before the terminal is passed over."""
        if not exchange.is_open or exchange.cancelled:
            return
        exchange.cancelled = exchange.discarding = True
        self._control.append(encode({1: 12, 2: exchange.id, 5: {"reason": reason[:_MAX_MESSAGE]}}))
        for stream in exchange.in_streams.values():
            stream.ended = True
        for stream in tuple(exchange.out_streams.values()):
            stream.kill(failure(Code.CANCELLED, reason or "the call was cancelled"))
        exchange.out_streams.clear()

    def refuse(self, error: CartdeckError) -> None:
        """An ERR about the connection itself, before leaving."""
        self._control.append(encode({1: 6, 2: 0, 5: error.to_wire()}))

    def wake(self, stream: OutStream) -> None:
        """`stream` has something to send."""
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def grant(self, stream: InStream, chunks: int) -> None:
        self._control.append(encode({1: 13, 2: stream.request_id, 11: stream.number, 19: chunks}))

    def damage(self, exchange: Exchange, error: CartdeckError) -> None:
        """The other end broke a law inside one exchange: answer it, keep the rest. For consumers too (an item cut
        off or too large)."""
        if exchange.is_requester:
            self.cancel(exchange, f"{error.code_name}: {error.message}")
        else:
            self.fail(exchange, error)

    def close_exchange(self, exchange: Exchange, error: CartdeckError) -> None:
        """The terminal came, or the pipe is gone."""
        self._forget(exchange, error)

    def finish_cancelled(self, exchange: Exchange) -> None:
        """CANCEL came while only the output of work that is done was still leaving: END goes now."""
        self._send_end(exchange, self._control)

    def _forget(self, exchange: Exchange, error: CartdeckError) -> None:
        self.exchanges.pop(exchange.id, None)
        exchange.close(error)

    def _advance(self, stream: OutStream, buffers: list[Buffer]) -> int:
        """Send what `stream` may send now, one chunk at most; the bytes of payload sent."""
        sent = 0
        if not stream.started:
            stream.started = True
            fields = _start_fields(stream)
            if stream.closing and stream.pending_bytes <= self.max_chunk:
                payload = b"".join(stream.pending)
                sent = len(payload)
                stream.pending.clear()
                stream.pending_bytes = 0
                buffers += encode_with_payload(fields, payload)
                self._close_stream(stream, buffers)
                return sent
            buffers.append(encode(fields))
        if stream.pending and stream.credit > 0:
            payload = stream.next_payload(self.max_chunk)
            sent = len(payload)
            buffers += encode_chunk(stream.request_id, stream.number, stream.index, payload)
            stream.index += 1
            stream.credit -= 1
        if stream.pending:
            if stream.credit > 0:
                self.wake(stream)
        elif stream.closing:
            buffers.append(encode({1: 9, 2: stream.request_id, 11: stream.number, 15: stream.index}))
            self._close_stream(stream, buffers)
        elif stream.on_writable is not None:
            stream.on_writable()
        return sent

    def _close_stream(self, stream: OutStream, buffers: list[Buffer]) -> None:
        stream.closed = True
        exchange = self.exchanges.get(stream.request_id)
        if exchange is not None:
            del exchange.out_streams[stream.number]
            if exchange.end_waiting is not None and not exchange.out_streams:
                self._send_end(exchange, buffers)
        if stream.on_writable is not None:
            stream.on_writable()

    def _send_end(self, exchange: Exchange, buffers: list[Buffer]) -> None:
        meta = exchange.end_waiting
        fields: dict[int, Any] = {1: 4, 2: exchange.id}
        if meta:
            fields[5] = meta
        buffers.append(encode(fields))
        if not exchange.is_requester:
            self._forget(exchange, failure(Code.CANCELLED, "the call has ended"))


def _start_fields(stream: OutStream) -> dict[int, Any]:
    fields: dict[int, Any] = {1: 8, 2: stream.request_id, 11: stream.number}
    if stream.media:
        fields[12] = stream.media
    if stream.is_sequence:
        fields[17] = True
    if stream.name:
        fields[21] = stream.name
    return fields


def _fraction(progress: float) -> float:
    """A progress that may leave: NaN and infinities count as nothing done."""
    return min(1.0, max(0.0, float(progress))) if isfinite(progress) else 0.0


def _frame(fields: dict[int, Any], limit: int) -> bytes:
    """A frame of bounded size. FRAME_TOO_LARGE names size and limit."""
    frame = encode(fields)
    if len(frame) - 4 > limit:
        raise failure(
            Code.FRAME_TOO_LARGE,
            f"{Kind(fields[1]).name} would be {len(frame) - 4} bytes; at most {limit} go into one frame",
            details={"size": len(frame) - 4, "limit": limit},
        )
    return frame
