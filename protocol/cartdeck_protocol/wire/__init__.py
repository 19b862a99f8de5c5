"""The wire: length-framed msgpack between a host and a cartridge, as a library without I/O."""

from cartdeck_protocol.wire.connection import Connection
from cartdeck_protocol.wire.events import (
    ArgumentsEnded,
    CancelReceived,
    ChunkReceived,
    ConnectionDamaged,
    ConnectionLogged,
    ConnectionRefused,
    Event,
    ExchangeDamaged,
    Failed,
    Finished,
    HeartbeatReceived,
    HelloReceived,
    Logged,
    RequestReceived,
    StrayReceived,
    StreamEnded,
    StreamStarted,
)
from cartdeck_protocol.wire.exchange import Exchange
from cartdeck_protocol.wire.frames import Buffer
from cartdeck_protocol.wire.items import ItemDecoder, encode_item
from cartdeck_protocol.wire.kinds import API_VERSION, PROTOCOL_VERSION, Key, Kind
from cartdeck_protocol.wire.limits import MAX_CONTROL_BACKLOG, Limits
from cartdeck_protocol.wire.messages import encode_heartbeat
from cartdeck_protocol.wire.sender import Role
from cartdeck_protocol.wire.stream import InStream, OutStream
from cartdeck_protocol.wire.templates import encode_chunk
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError

__all__ = [
    "API_VERSION",
    "MAX_CONTROL_BACKLOG",
    "PROTOCOL_VERSION",
    "ArgumentsEnded",
    "Buffer",
    "CancelReceived",
    "ChunkReceived",
    "Connection",
    "ConnectionDamaged",
    "ConnectionLogged",
    "ConnectionRefused",
    "Event",
    "Exchange",
    "ExchangeDamaged",
    "Failed",
    "Finished",
    "HeartbeatReceived",
    "HelloReceived",
    "InStream",
    "ItemDecoder",
    "Key",
    "Kind",
    "Limits",
    "LocalProtocolError",
    "Logged",
    "OutStream",
    "RemoteProtocolError",
    "RequestReceived",
    "Role",
    "StrayReceived",
    "StreamEnded",
    "StreamStarted",
    "encode_chunk",
    "encode_heartbeat",
    "encode_item",
]
