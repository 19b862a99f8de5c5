"""Owns the sending half of a connection, and the state that both halves share.

It does not know what is received. Bytes to send are collected by `outgoing`, which also cuts streams into chunks, so
that credit, merging and the order of terminals live in one place.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.frames import Buffer, encode, encode_with_payload
from cartdeck_protocol.wire.limits import MAX_STREAM_TEXT, Limits
from cartdeck_protocol.wire.messages import (
    cancel_frame,
    end_frame,
    error_frame,
    hello_frame,
    log_frame,
    request_frame,
    start_fields,
)
from cartdeck_protocol.wire.stream import InStream, OutStream
from cartdeck_protocol.wire.templates import encode_chunk, encode_whole
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError


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
        self._outgoing: list[Buffer] = []
        self._ready: deque[OutStream] = deque()

    @property
    def opened_requests(self) -> int:
        """Requests that this end made so far, open or ended."""
        return (self.last_own_id + self.role.value) // 2

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing or self._ready)

    def outgoing(self, room: int = 1 << 62) -> list[Buffer]:
        """The bytes to send now: all control frames, and chunks while there is credit and `room` bytes of payload are
        not full; the last chunk may be longer than the room.

        Streams take turns, a chunk each. Call it again when there is room; `has_outgoing` says whether to.
        """
        ready = self._ready
        while ready and room > 0:
            stream = ready.popleft()
            stream.queued = False
            if stream.error is None:
                room -= self._advance(stream)
        # taken last: what a callback of a stream asks for leaves in the order of asking
        buffers, self._outgoing = self._outgoing, []
        return buffers

    def send_hello(self) -> None:
        """The host says it first; a cartridge's leaves as the answer to it."""
        if self.hello_sent:
            raise LocalProtocolError("HELLO was sent before")
        self.hello_sent = True
        manifest = self.manifest if self.role is Role.CARTRIDGE else None
        self._outgoing.append(hello_frame(self.limits, software=self.software, manifest=manifest))

    def request(
        self,
        cap: str,
        arguments: Mapping[str, bytes] | None = None,
        *,
        complete: bool = True,
        parent: Exchange | None = None,
    ) -> Exchange:
        """Open an exchange. With `complete` no argument stream follows, else `open_stream` them and `end` it.

        A cartridge's peer call names the request that it is made for as its `parent`. FRAME_TOO_LARGE when the whole
        is more than one frame; more than `their_limits.inline_arguments` is the other end's to refuse.
        """
        self.last_own_id += 2
        exchange = Exchange(self.last_own_id, is_requester=True)
        parent_id = None if parent is None else parent.id
        frame = request_frame(exchange.id, cap, arguments=arguments, complete=complete, parent=parent_id)
        if complete:
            exchange.end_waiting = b""
        self.exchanges[exchange.id] = exchange
        self._outgoing.append(frame)
        return exchange

    def open_stream(
        self, exchange: Exchange, *, name: str = "", media: str = "", is_sequence: bool = False
    ) -> OutStream:
        """A stream of arguments (as requester: `name` says which) or of an output (as responder; "" is the main).

        UNSUPPORTED beyond the streams that the other end allows; FRAME_TOO_LARGE for a name and media that leave no
        room beside a payload.
        """
        if exchange.is_open and exchange.end_waiting is not None:
            raise LocalProtocolError(f"a stream of request {exchange.id} after its end")
        if (name or media) and len((name + media).encode(errors="replace")) > MAX_STREAM_TEXT:
            raise failure(
                Code.FRAME_TOO_LARGE,
                f"a stream's name and media are longer than {MAX_STREAM_TEXT} bytes: {name[:40]!r} {media[:40]!r}",
            )
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
        streams have left; streams still open are closed first.

        A provenance that the other end would refuse is raised here, to the one who can mend it: FRAME_TOO_LARGE, or
        LocalProtocolError for what is no plain data.
        """
        if not exchange.is_open or exchange.end_waiting is not None:
            return
        if exchange.is_requester:
            if exchange.cancelled:
                return
            exchange.end_waiting = encode({1: 4, 2: exchange.id})
        else:
            exchange.end_waiting = end_frame(exchange.id, progress=progress, provenance=provenance)
        for stream in exchange.out_streams.values():
            stream.close()
        if not exchange.out_streams:
            self._send_end(exchange, exchange.end_waiting)

    def fail(self, exchange: Exchange, error: CartdeckError) -> None:
        """As responder: failure, the terminal. What is pending is dropped."""
        if not exchange.is_open:
            return
        self._must_be(exchange, is_requester=False, what="ERR")
        self.close_exchange(exchange, error)
        self._outgoing.append(error_frame(exchange.id, error))

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
        if exchange is not None:
            if not exchange.is_open or (exchange.end_waiting is not None and not exchange.is_requester):
                return
            self._must_be(exchange, is_requester=False, what="LOG")
        request_id = 0 if exchange is None else exchange.id
        self._outgoing.append(
            log_frame(request_id, level, message, progress=progress, phase=phase, work=work, total=total)
        )

    def cancel(self, exchange: Exchange, reason: str = "") -> None:
        """As requester: give up. What comes before the terminal is passed over."""
        if not exchange.is_open or exchange.cancelled:
            return
        self._must_be(exchange, is_requester=True, what="CANCEL")
        exchange.cancelled = exchange.discarding = True
        self._outgoing.append(cancel_frame(exchange.id, reason))
        for stream in exchange.in_streams.values():
            stream.ended = True
        for stream in tuple(exchange.out_streams.values()):
            stream.kill(failure(Code.CANCELLED, reason or "the call was cancelled"))
        exchange.out_streams.clear()

    def refuse(self, error: CartdeckError) -> None:
        """An ERR about the connection itself, before leaving."""
        self._outgoing.append(error_frame(0, error))

    def wake(self, stream: OutStream) -> None:
        """`stream` has something to send."""
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def grant(self, stream: InStream, chunks: int) -> None:
        """A CREDIT for chunks of `stream` that were taken."""
        self._outgoing.append(encode({1: 13, 2: stream.request_id, 11: stream.number, 19: chunks}))

    def damage(self, exchange: Exchange, error: CartdeckError) -> None:
        """The other end broke a law inside one exchange: answer it, keep the rest. For consumers too (an item cut
        off or too large)."""
        if exchange.is_requester:
            self.cancel(exchange, f"{error.code_name}: {error.message}")
        else:
            self.fail(exchange, error)

    def close_exchange(self, exchange: Exchange, error: CartdeckError | None = None) -> None:
        """The terminal came, or the pipe is gone: whoever still writes gets `error`."""
        self.exchanges.pop(exchange.id, None)
        exchange.close(error)

    def finish_cancelled(self, exchange: Exchange) -> None:
        """CANCEL came while only the output of work that is done was still leaving: END goes now."""
        if exchange.end_waiting:
            self._send_end(exchange, exchange.end_waiting)

    def _must_be(self, exchange: Exchange, *, is_requester: bool, what: str) -> None:
        if exchange.is_requester is not is_requester:
            raise LocalProtocolError(
                f"{what} for request {exchange.id} from its {'requester' if exchange.is_requester else 'responder'}"
            )

    def _advance(self, stream: OutStream) -> int:
        """Send what `stream` may send now, one chunk at most; the bytes of payload sent."""
        sent, buffers = 0, self._outgoing
        if not stream.started:
            stream.started = True
            if stream.closing and stream.is_merged and stream.pending_bytes <= self.max_chunk:
                payload = b"".join(stream.pending)
                sent = len(payload)
                stream.pending.clear()
                stream.pending_bytes = 0
                if stream.media or stream.name or stream.is_sequence:
                    buffers += encode_with_payload(start_fields(stream), payload)
                else:
                    buffers += encode_whole(stream.request_id, stream.number, payload)
                self._close_stream(stream)
                return sent
            buffers.append(encode(start_fields(stream)))
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
            self._close_stream(stream)
        elif stream.on_writable is not None:
            stream.on_writable()
        return sent

    def _close_stream(self, stream: OutStream) -> None:
        stream.closed = True
        exchange = self.exchanges.get(stream.request_id)
        if exchange is not None:
            del exchange.out_streams[stream.number]
            if exchange.end_waiting and not exchange.out_streams:
                self._send_end(exchange, exchange.end_waiting)
        if stream.on_writable is not None:
            stream.on_writable()

    def _send_end(self, exchange: Exchange, frame: bytes) -> None:
        self._outgoing.append(frame)
        if not exchange.is_requester:
            self.close_exchange(exchange)
