"""Owns what a connection reports: one small record per event.

It does not know who listens. Plain slotted dataclasses: a frozen one costs five times as much to make.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.limits import Limits
from cartdeck_protocol.wire.stream import InStream
from cartdeck_protocol.wire.violation import RemoteProtocolError


@dataclass(slots=True)
class HelloReceived:
    """The other end introduced itself; `manifest` is the cartridge's JSON, empty from a host."""

    limits: Limits
    features: frozenset[str]
    software: str
    manifest: bytes


@dataclass(slots=True)
class RequestReceived:
    """The other end opened `exchange`; `complete` when no argument stream follows. `parent` is set on a peer call: the
    id of the request that it is made for."""

    exchange: Exchange
    cap: str
    arguments: dict[str, bytes]
    complete: bool
    parent: int | None


@dataclass(slots=True)
class StreamStarted:
    """A stream opened. With `payload` it is the whole stream, and it has ended already."""

    exchange: Exchange
    stream: InStream
    payload: bytes | None


@dataclass(slots=True)
class ChunkReceived:
    exchange: Exchange
    stream: InStream
    payload: bytes


@dataclass(slots=True)
class StreamEnded:
    exchange: Exchange
    stream: InStream


@dataclass(slots=True)
class ArgumentsEnded:
    """The requester's END: every argument stream is there."""

    exchange: Exchange


@dataclass(slots=True)
class Finished:
    """The terminal of an exchange that succeeded. `progress` is in [0, 1]."""

    exchange: Exchange
    progress: float
    provenance: dict[str, Any]


@dataclass(slots=True)
class Failed:
    """The terminal of an exchange that failed at the other end."""

    exchange: Exchange
    error: CartdeckError


@dataclass(slots=True)
class ExchangeDamaged:
    """The other end broke the protocol inside this exchange; it is over for this end, the others go on.

    The answer is already in the outgoing bytes: ERR as responder, and nothing more comes; CANCEL as requester, and the
    terminal still comes. A terminal that is itself damaged is `Failed` with PROTOCOL_VIOLATION.
    """

    exchange: Exchange
    error: CartdeckError


@dataclass(slots=True)
class Logged:
    """A LOG of an exchange. `progress` is None for a plain line, else in [0, 1]."""

    exchange: Exchange
    level: str
    message: str
    progress: float | None
    phase: str | None
    work: float | None
    total: float | None


@dataclass(slots=True)
class CancelReceived:
    """The requester gave up; nothing follows for this exchange, which still wants its terminal."""

    exchange: Exchange
    reason: str


@dataclass(slots=True)
class HeartbeatReceived:
    rss_bytes: int | None
    open_requests: int | None
    stragglers: int
    strays: int


@dataclass(slots=True)
class ConnectionLogged:
    """A LOG about the connection itself."""

    level: str
    message: str


@dataclass(slots=True)
class ConnectionRefused:
    """An ERR about the connection itself: the other end is about to leave."""

    error: CartdeckError


@dataclass(slots=True)
class StrayReceived:
    """A frame for an id that was never opened; it was counted and passed over."""

    kind: int
    request_id: int


@dataclass(slots=True)
class ConnectionDamaged:
    """The framing is broken, or a law of the connection: always the last event."""

    error: RemoteProtocolError


Event: TypeAlias = (
    HelloReceived
    | RequestReceived
    | StreamStarted
    | ChunkReceived
    | StreamEnded
    | ArgumentsEnded
    | Finished
    | Failed
    | ExchangeDamaged
    | Logged
    | CancelReceived
    | HeartbeatReceived
    | ConnectionLogged
    | ConnectionRefused
    | StrayReceived
    | ConnectionDamaged
)
