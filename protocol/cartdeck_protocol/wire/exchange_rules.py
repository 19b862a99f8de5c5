"""Owns what a received frame does to the exchange it belongs to: the laws inside one request.

It does not know the connection's own frames, nor the pipe. What breaks a law here ends one exchange (law 2).
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure, from_wire
from cartdeck_protocol.wire import events
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.faults import meta_fault
from cartdeck_protocol.wire.frames import Fields
from cartdeck_protocol.wire.kinds import CANCEL, CHUNK, CREDIT, END, ERR, LOG, STREAM_END, STREAM_START
from cartdeck_protocol.wire.limits import MAX_STREAM_TEXT
from cartdeck_protocol.wire.sender import Sender
from cartdeck_protocol.wire.stream import InStream

_MOST_CREDIT: Final = 1 << 31


class ExchangeRules:
    """One frame at a time; what it means goes to `events`."""

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self.events: list[events.Event] = []
        self._handlers: dict[int, Callable[[Exchange, Fields], None]] = {
            CHUNK: self._on_chunk,
            END: self._on_end,
            LOG: self._on_log,
            ERR: self._on_err,
            STREAM_START: self._on_stream_start,
            STREAM_END: self._on_stream_end,
            CANCEL: self._on_cancel,
            CREDIT: self._on_credit,
        }

    def apply(self, exchange: Exchange, kind: int, fields: Fields) -> None:
        """A frame for an open exchange. After a CANCEL everything but the responder's terminal is late: passed over."""
        if not exchange.discarding or (exchange.is_requester and kind in (END, ERR)):
            self._handlers[kind](exchange, fields)

    def _damage(self, exchange: Exchange, message: str, code: Code = Code.PROTOCOL_VIOLATION) -> None:
        error = failure(code, message)
        self._connection.damage(exchange, error)
        self.events.append(events.ExchangeDamaged(exchange, error))

    def _on_stream_start(self, exchange: Exchange, fields: Fields) -> None:
        media, name = fields.get(12, ""), fields.get(21, "")
        self.take_stream(exchange, fields[11], fields.get(6), names=(media, name), is_sequence=fields.get(17, False))

    def take_stream(
        self,
        exchange: Exchange,
        number: int,
        payload: bytes | None,
        *,
        names: tuple[str, str] = ("", ""),
        is_sequence: bool = False,
    ) -> None:
        """A stream begins; with `payload` it is the whole stream. `names` are its media and its name. `exchange` is not
        discarding."""
        connection = self._connection
        if exchange.their_end:
            self._damage(exchange, "STREAM_START after the requester's END")
            return
        if number != exchange.total_in:
            self._damage(exchange, f"STREAM_START of stream {number}; the next number is {exchange.total_in}")
            return
        if number >= connection.limits.streams_per_request:
            self._damage(exchange, f"more than {connection.limits.streams_per_request} streams in one request")
            return
        media, name = names
        if media or name:
            size = len((media + name).encode())
            if size > MAX_STREAM_TEXT:  # the host could not say them again to whom it forwards the stream
                message = f"a stream's name and media of {size} bytes; at most {MAX_STREAM_TEXT} are allowed"
                self._damage(exchange, message, Code.FRAME_TOO_LARGE)
                return
        exchange.total_in = number + 1
        credit = connection.limits.initial_credit
        stream = InStream(
            connection, exchange.id, number, media=media, name=name, is_sequence=is_sequence, credit=credit
        )
        if payload is None:
            exchange.in_streams[number] = stream
        elif len(payload) > connection.max_chunk:
            self._damage(exchange, f"a payload of {len(payload)} bytes in STREAM_START", Code.FRAME_TOO_LARGE)
            return
        else:
            stream.ended = True
        self.events.append(events.StreamStarted(exchange, stream, payload))

    def _on_chunk(self, exchange: Exchange, fields: Fields) -> None:
        self.take_chunk(exchange, fields[11], fields[14], fields[6])

    def take_chunk(self, exchange: Exchange, number: int, index: int, payload: bytes) -> None:
        """`exchange` is not discarding: the quick way for CHUNKs comes straight here."""
        stream = exchange.in_streams.get(number)
        if stream is None:
            self._damage(exchange, f"CHUNK for stream {number}, which is not open")
        elif index != stream.index:
            self._damage(exchange, f"CHUNK {index} of stream {number}; the next is {stream.index}")
        elif stream.window <= 0:
            self._damage(exchange, f"CHUNK {index} of stream {number} without credit", Code.CREDIT_VIOLATION)
        elif len(payload) > self._connection.max_chunk:
            self._damage(exchange, f"a CHUNK of {len(payload)} bytes", Code.FRAME_TOO_LARGE)
        else:
            stream.index = index + 1
            stream.window -= 1
            self.events.append(events.ChunkReceived(exchange, stream, payload))

    def _on_stream_end(self, exchange: Exchange, fields: Fields) -> None:
        number: int = fields[11]
        stream = exchange.in_streams.pop(number, None)
        if stream is None:
            self._damage(exchange, f"STREAM_END for stream {number}, which is not open")
        elif fields[15] != stream.index:
            self._damage(exchange, f"STREAM_END counts {fields[15]} chunks of stream {number}; {stream.index} came")
        else:
            stream.ended = True
            self.events.append(events.StreamEnded(exchange, stream))

    def _on_credit(self, exchange: Exchange, fields: Fields) -> None:
        number, credit = fields[11], fields[19]
        stream = exchange.out_streams.get(number)
        if stream is None:
            if number >= exchange.next_stream:
                self._damage(exchange, f"CREDIT for stream {number}, which was never opened")
            return  # late: the stream is closed
        if credit < 1 or stream.credit + credit > _MOST_CREDIT:
            self._damage(exchange, f"CREDIT of {credit} for stream {number}", Code.CREDIT_VIOLATION)
            return
        stream.credit += credit
        if stream.pending:
            self._connection.wake(stream)

    def _on_log(self, exchange: Exchange, fields: Fields) -> None:
        meta: dict[str, Any] = fields[5]
        fault = "LOG from the requester" if not exchange.is_requester else meta_fault(LOG, meta)
        if fault is not None:
            self._damage(exchange, fault)
            return
        self.events.append(
            events.Logged(
                exchange,
                meta["level"],
                meta["message"],
                self._progress(meta.get("progress")),
                meta.get("phase"),
                self._finite(meta.get("work")),
                self._finite(meta.get("total")),
            )
        )

    def _on_end(self, exchange: Exchange, fields: Fields) -> None:
        meta: dict[str, Any] = fields.get(5) or {}
        fault = meta_fault(END, meta)
        if exchange.is_requester:
            if fault is not None:
                self._fail(exchange, failure(Code.PROTOCOL_VIOLATION, fault))
                return
            progress = self._progress(meta.get("progress"))
            self.take_end(exchange, 1.0 if progress is None else progress, meta.get("provenance", {}))
            return
        fault = fault or self._unfinished(exchange)
        if fault is not None or exchange.their_end:
            self._damage(exchange, fault or "END after the requester's END")
            return
        exchange.their_end = True
        self.events.append(events.ArgumentsEnded(exchange))

    def take_end(self, exchange: Exchange, progress: float, provenance: dict[str, Any]) -> None:
        """The responder's terminal: success."""
        fault = self._unfinished(exchange) if exchange.in_streams else None
        if fault is not None:
            self._fail(exchange, failure(Code.PROTOCOL_VIOLATION, fault))
            return
        self._connection.close_exchange(exchange)
        self.events.append(events.Finished(exchange, progress, provenance))

    def _unfinished(self, exchange: Exchange) -> str | None:
        if exchange.in_streams and not exchange.cancelled:
            return f"END with {len(exchange.in_streams)} streams of its own still open"
        return None

    def _on_err(self, exchange: Exchange, fields: Fields) -> None:
        meta: dict[str, Any] = fields[5]
        if not exchange.is_requester:
            self._damage(exchange, "ERR from the requester")
            return
        fault = meta_fault(ERR, meta)
        self._fail(exchange, from_wire(meta) if fault is None else failure(Code.PROTOCOL_VIOLATION, fault))

    def _fail(self, exchange: Exchange, error: CartdeckError) -> None:
        """The terminal came: it is an error, or it is damaged itself."""
        self._connection.close_exchange(exchange, error)
        self.events.append(events.Failed(exchange, error))

    def _on_cancel(self, exchange: Exchange, fields: Fields) -> None:
        if exchange.is_requester:
            self._damage(exchange, "CANCEL from the responder")
            return
        if exchange.cancelled:
            return
        meta: dict[str, Any] = fields.get(5) or {}
        fault = meta_fault(CANCEL, meta)
        if fault is not None:
            self._damage(exchange, fault)
            return
        exchange.cancelled = exchange.discarding = exchange.their_end = True
        error = failure(Code.CANCELLED, meta.get("reason") or "the caller cancelled")
        for stream in exchange.in_streams.values():
            stream.ended = True
        exchange.in_streams.clear()
        for stream in tuple(exchange.out_streams.values()):
            stream.kill(error)
        exchange.out_streams.clear()
        self.events.append(events.CancelReceived(exchange, error.message))
        if exchange.end_waiting is not None:  # the work was done; only its output was still leaving
            self._connection.finish_cancelled(exchange)

    def _progress(self, value: float | None) -> float | None:
        if value is None:
            return None
        if not isfinite(value) or not 0 <= value <= 1:
            self._connection.bad_progress += 1
            return None
        return float(value)

    def _finite(self, value: float | None) -> float | None:
        if value is None or (isfinite(value) and value >= 0):
            return value
        self._connection.bad_progress += 1
        return None
