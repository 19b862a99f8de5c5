"""Owns the cartridge's own requests in one conversation: gathered, answered as the kit was told, judged by the laws.

It does not know the pipe, nor where the answers come from.
"""

from dataclasses import dataclass, field

from cartdeck_conformance import catalogue
from cartdeck_conformance.call import Call
from cartdeck_conformance.peers import Answer, Peers
from cartdeck_conformance.watch import Tell
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    ArgumentsEnded,
    CancelReceived,
    ChunkReceived,
    Connection,
    Event,
    Exchange,
    ExchangeDamaged,
    RequestReceived,
    StreamStarted,
)


@dataclass(slots=True)
class PeerCall:
    """One request of the cartridge."""

    cap: str
    exchange: Exchange
    parent: Call | None
    arguments: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    is_cancelled: bool = False


class PeerDesk:
    """`is_held` keeps every question waiting; `refusal` answers each with that error."""

    def __init__(self, connection: Connection, peers: Peers, tell: Tell) -> None:
        self._connection = connection
        self._peers = peers
        self._tell = tell
        self.is_held = False
        self.refusal: CartdeckError | None = None
        self.open: list[PeerCall] = []
        self.count = 0

    def on_event(self, event: Event) -> bool:
        """Whether the event belongs to a request of the cartridge."""
        if isinstance(event, RequestReceived):
            self._on_request(event)
            return True
        owner = getattr(getattr(event, "exchange", None), "owner", None)
        if not isinstance(owner, PeerCall):
            return False
        if owner.parent is not None:
            owner.parent.is_heard()
        match event:
            case StreamStarted():
                owner.arguments[event.stream.name] = bytearray(event.payload or b"")
            case ChunkReceived():
                owner.arguments[event.stream.name] += event.payload
                event.stream.take()
                event.stream.settle()
            case ArgumentsEnded():
                self._answer(owner)
            case CancelReceived():
                owner.is_cancelled = True
                self._connection.fail(owner.exchange, failure(Code.CANCELLED, event.reason))
                self._close(owner)
            case ExchangeDamaged():
                self._tell(catalogue.FRAMES, f"its peer call of {owner.cap}: {event.error.message}")
                self._close(owner)
            case _:
                pass
        return True

    def _on_request(self, event: RequestReceived) -> None:
        self.count += 1
        parent = self._parent(event)
        call = PeerCall(event.cap, event.exchange, parent)
        call.arguments = {name: bytearray(data) for name, data in event.arguments.items()}
        event.exchange.owner = call
        self.open.append(call)
        if parent is not None:
            parent.peer_calls.append(event.cap)
            parent.is_heard()
        if parent is None and event.parent is not None:
            self._connection.fail(call.exchange, failure(Code.CANCELLED, "the request that it is made for is over"))
            self._close(call)
        elif event.complete:
            self._answer(call)

    def _parent(self, event: RequestReceived) -> Call | None:
        calls = {
            number: exchange.owner
            for number, exchange in self._connection.exchanges.items()
            if isinstance(exchange.owner, Call) and not exchange.cancelled
        }
        if event.parent is not None:
            return calls.get(event.parent)
        if len(calls) != 1:
            self._tell(
                catalogue.PEER_CALLS,
                f"its peer call of {event.cap} names no parent, and {len(calls)} requests are open at it",
            )
        return next(iter(calls.values()), None)

    def _answer(self, call: PeerCall) -> None:
        if self.is_held:
            return
        found: Answer | None = self.refusal
        if found is None:
            found = self._peers.answer(call.cap, {name: bytes(data) for name, data in call.arguments.items()})
        if found is None:
            if call.parent is not None:
                call.parent.refused_peers.append(call.cap)
            found = failure(Code.NO_SUCH_CAP, f"the kit was not told how to answer {call.cap}")
        if isinstance(found, CartdeckError):
            self._connection.fail(call.exchange, found)
        else:
            for name, data in found.items():
                stream = self._connection.open_stream(call.exchange, name=name)
                stream.write(data)
                stream.close()
            self._connection.end(call.exchange)
        self._close(call)

    def _close(self, call: PeerCall) -> None:
        if call in self.open:
            self.open.remove(call)
