"""Owns what received frames do to the connection: greeting, new requests, and who gets the rest.

It does not know the rules inside one exchange, nor the pipe.
"""

from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure, from_wire
from cartdeck_protocol.wire import events
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.exchange_rules import ExchangeRules
from cartdeck_protocol.wire.faults import meta_fault
from cartdeck_protocol.wire.frames import LENGTH, Fields, decode
from cartdeck_protocol.wire.greeting import greet
from cartdeck_protocol.wire.kinds import CANCEL, CHUNK, CREDIT, END, ERR, HEARTBEAT, HELLO, LOG, REQ, STREAM_START, Kind
from cartdeck_protocol.wire.sender import Role, Sender
from cartdeck_protocol.wire.splitter import Splitter
from cartdeck_protocol.wire.templates import (
    CHUNK_HEAD,
    CHUNK_OVERHEAD,
    CHUNK_TAGS,
    END_BYTES,
    END_FRAME,
    END_TAGS,
    WHOLE_HEAD,
    WHOLE_OVERHEAD,
    WHOLE_TAGS,
)
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError

_ABOUT_CONNECTION: Final = (HEARTBEAT, LOG, ERR)
_ABOUT_NO_REQUEST: Final = (HELLO, HEARTBEAT)


class Reception:
    """The receiving half of a connection."""

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self._splitter = Splitter()
        self._events: list[events.Event] = []
        self._rules = ExchangeRules(connection)
        self._takers = {CHUNK: self._take_chunk, STREAM_START: self._take_whole, END: self._take_end}
        self._their_parity = 1 if connection.role is Role.HOST else 0

    @property
    def is_between_frames(self) -> bool:
        return self._splitter.is_between_frames

    @property
    def received_frames(self) -> int:
        return self._splitter.frame

    def buffer(self) -> memoryview:
        return self._splitter.space()

    def received(self, size: int) -> list[events.Event]:
        connection = self._connection
        if connection.error is not None:
            raise LocalProtocolError("bytes were given to a connection that is finished")
        splitter = self._splitter
        splitter.fill(size)
        found: list[events.Event] = []
        self._events = self._rules.events = found
        try:
            while (body := splitter.next_body(self._takers)) is not None:
                self._dispatch(decode(body, frame=splitter.frame, offset=splitter.offset))
                splitter.advance(len(body))
        except RemoteProtocolError as error:
            splitter.drop()
            connection.error = error
            found.append(events.ConnectionDamaged(error))
        return found

    def _violation(self, message: str, key: str | None = None) -> RemoteProtocolError:
        return RemoteProtocolError(message, frame=self._splitter.frame, offset=self._splitter.offset, key=key)

    # The frames of our own sender that nearly every call has, each by one struct instead of a map. False for any other
    # encoding, and for what belongs to no open request: that goes the long way.

    def _take_chunk(self, view: memoryview, start: int, length: int) -> bool:
        if length < CHUNK_OVERHEAD:
            return False
        head = CHUNK_HEAD.unpack_from(view, start)
        if (head[1], head[2], head[4], head[6], head[8]) != CHUNK_TAGS or head[9] != length - CHUNK_OVERHEAD:
            return False
        exchange = self._connection.exchanges.get(head[3])
        if exchange is None:
            return False
        if not exchange.discarding:
            payload = bytes(view[start + CHUNK_HEAD.size : start + LENGTH.size + length])
            self._rules.take_chunk(exchange, head[5], head[7], payload)
        return True

    def _take_whole(self, view: memoryview, start: int, length: int) -> bool:
        if length < WHOLE_OVERHEAD:
            return False
        head = WHOLE_HEAD.unpack_from(view, start)
        if (head[1], head[2], head[4], head[6]) != WHOLE_TAGS or head[7] != length - WHOLE_OVERHEAD:
            return False
        exchange = self._connection.exchanges.get(head[3])
        if exchange is None:
            return False
        if not exchange.discarding:
            payload = bytes(view[start + WHOLE_HEAD.size : start + LENGTH.size + length])
            self._rules.take_stream(exchange, head[5], payload)
        return True

    def _take_end(self, view: memoryview, start: int, length: int) -> bool:
        if length != END_BYTES:
            return False
        head = END_FRAME.unpack_from(view, start)
        if (head[1], head[2], head[4]) != END_TAGS:
            return False
        exchange = self._connection.exchanges.get(head[3])
        if exchange is None or not exchange.is_requester:
            return False
        self._rules.take_end(exchange, 1.0, {})
        return True

    def _dispatch(self, fields: Fields) -> None:
        kind: int = fields[1]
        request_id: int = fields[2]
        connection = self._connection
        if not connection.is_greeted:
            self._on_first(kind, request_id, fields)
        elif kind == REQ:
            self._on_request(request_id, fields)
        elif request_id == 0:
            self._on_connection_frame(kind, fields)
        elif kind in _ABOUT_NO_REQUEST:
            raise self._violation(f"{Kind(kind).name} must have id 0", "id")
        else:
            exchange = connection.exchanges.get(request_id)
            if exchange is None:
                self._on_closed(kind, request_id)
            else:
                self._rules.apply(exchange, kind, fields)

    def _on_first(self, kind: int, request_id: int, fields: Fields) -> None:
        if kind != HELLO or request_id != 0:
            raise self._violation(f"the first frame must be HELLO with id 0, found kind {kind} with id {request_id}")
        self._events.append(greet(self._connection, self._meta(kind, fields), self._violation))
        self._splitter.agree(self._connection.limits)

    def _meta(self, kind: int, fields: Fields) -> dict[str, Any]:
        """The meta of a frame about the connection; a wrong field finishes it."""
        meta: dict[str, Any] = fields.get(5) or {}
        fault = meta_fault(kind, meta)
        if fault is not None:
            raise self._violation(fault, "meta")
        return meta

    def _on_connection_frame(self, kind: int, fields: Fields) -> None:
        if kind == HELLO:
            raise self._violation("a second HELLO", "kind")
        meta = self._meta(kind, fields) if kind in _ABOUT_CONNECTION else {}
        if kind == HEARTBEAT and self._connection.role is Role.HOST:
            self._events.append(
                events.HeartbeatReceived(
                    meta.get("rss_bytes"), meta.get("open_requests"), meta.get("stragglers", 0), meta.get("strays", 0)
                )
            )
        elif kind == LOG:
            self._events.append(events.ConnectionLogged(meta["level"], meta["message"]))
        elif kind == ERR:
            self._events.append(events.ConnectionRefused(from_wire(meta)))
        else:
            raise self._violation(f"{Kind(kind).name} may not come with id 0 from this end", "id")

    def _on_request(self, request_id: int, fields: Fields) -> None:
        connection = self._connection
        if request_id % 2 != self._their_parity or request_id <= connection.last_their_id:
            raise self._violation(
                f"REQ with id {request_id}; ids from this end are {'odd' if self._their_parity else 'even'} "
                f"and above {connection.last_their_id}",
                "id",
            )
        connection.last_their_id = request_id
        exchange = Exchange(request_id, is_requester=False)
        error = self._request_fault(fields)
        if error is not None:
            connection.fail(exchange, error)
            return
        meta: dict[str, Any] = fields.get(5) or {}
        connection.exchanges[request_id] = exchange
        exchange.their_end = meta.get("complete", False)
        arguments: dict[str, bytes] = meta.get("arguments") or {}
        self._events.append(
            events.RequestReceived(exchange, fields[10], arguments, exchange.their_end, meta.get("parent"))
        )

    def _request_fault(self, fields: Fields) -> CartdeckError | None:
        limits, exchanges = self._connection.limits, self._connection.exchanges
        # the ones of this end do not count; looking at each only when there are that many in all
        if len(exchanges) >= limits.open_requests and limits.open_requests <= sum(
            not exchange.is_requester for exchange in exchanges.values()
        ):
            return failure(Code.QUEUE_FULL, f"{limits.open_requests} requests are open on this connection")
        meta: dict[str, Any] = fields.get(5) or {}
        fault = meta_fault(REQ, meta)
        if fault is not None:
            return failure(Code.PROTOCOL_VIOLATION, fault)
        arguments: dict[str, Any] = meta.get("arguments") or {}
        size = 0
        for name, value in arguments.items():
            if type(value) is not bytes:
                return failure(
                    Code.PROTOCOL_VIOLATION,
                    f"argument {name} must be bytes, found {type(value).__name__}",
                    argument=name,
                )
            size += len(value)
        if size > limits.inline_arguments:
            return failure(
                Code.FRAME_TOO_LARGE,
                f"inline arguments of {size} bytes; above {limits.inline_arguments} they are streams",
            )
        return None

    def _on_closed(self, kind: int, request_id: int) -> None:
        """A frame for an id that is not open (law 3): late, straggler or stray."""
        connection = self._connection
        is_own = request_id % 2 != self._their_parity
        last = connection.last_own_id if is_own else connection.last_their_id
        if request_id <= last:
            connection.stragglers += kind not in (CREDIT, CANCEL)  # those two are late: normal
        else:
            connection.strays += 1
            self._events.append(events.StrayReceived(kind, request_id))
