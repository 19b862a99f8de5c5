"""Owns the frames that nearly every call sends, as fixed layouts: a CHUNK, a whole output, an END that says success.

It does not know when they are sent. Packing one, or knowing it again, is one `struct` call, a tenth of what a map
takes. Each is legal msgpack, and any other encoding of the same map means the same; what a layout cannot hold is
encoded as a map.
"""

from struct import Struct
from typing import Final

from cartdeck_protocol.wire.frames import LENGTH, OWN_BUFFER_BYTES, Buffer, encode, encode_with_payload

_MOST_UINT32: Final = 0xFFFFFFFF
_MOST_UINT16: Final = 0xFFFF

_ID: Final = b"\x02\xce"
_STREAM: Final = b"\x0b\xcd"
_PAYLOAD: Final = b"\x06\xc6"

CHUNK_HEAD: Final = Struct(">I3s2sI2sH2sI2sI")
CHUNK_TAGS: Final = (b"\x85\x01\x03", _ID, _STREAM, b"\x0e\xce", _PAYLOAD)
CHUNK_OVERHEAD: Final = CHUNK_HEAD.size - LENGTH.size

WHOLE_HEAD: Final = Struct(">I3s2sI2sH2sI")
WHOLE_TAGS: Final = (b"\x84\x01\x08", _ID, _STREAM, _PAYLOAD)
WHOLE_OVERHEAD: Final = WHOLE_HEAD.size - LENGTH.size

# the meta of an END with nothing but a progress of 1
END_FRAME: Final = Struct(">I3s2sI20s")
END_TAGS: Final = (b"\x83\x01\x04", _ID, b"\x05\x81\xa8progress\xcb\x3f\xf0\0\0\0\0\0\0")
END_BYTES: Final = END_FRAME.size - LENGTH.size


def encode_chunk(request_id: int, stream: int, index: int, payload: Buffer) -> list[Buffer]:
    """A CHUNK; a large payload is handed on as it is."""
    size = len(payload)
    if request_id > _MOST_UINT32 or stream > _MOST_UINT16 or index > _MOST_UINT32:
        return encode_with_payload({1: 3, 2: request_id, 11: stream, 14: index}, bytes(payload))
    head = CHUNK_HEAD.pack(
        CHUNK_OVERHEAD + size, CHUNK_TAGS[0], _ID, request_id, _STREAM, stream, CHUNK_TAGS[3], index, _PAYLOAD, size
    )  # fmt: skip  # the template reads in its own order
    return [head + payload] if size < OWN_BUFFER_BYTES else [head, payload]


def encode_whole(request_id: int, stream: int, payload: bytes) -> list[Buffer]:
    """A STREAM_START that is the whole of a main byte stream."""
    size = len(payload)
    if request_id > _MOST_UINT32 or stream > _MOST_UINT16:
        return encode_with_payload({1: 8, 2: request_id, 11: stream}, payload)
    head = WHOLE_HEAD.pack(WHOLE_OVERHEAD + size, WHOLE_TAGS[0], _ID, request_id, _STREAM, stream, _PAYLOAD, size)
    return [head + payload] if size < OWN_BUFFER_BYTES else [head, payload]


def encode_plain_end(request_id: int) -> bytes:
    """The responder's END of a call that is done, without a provenance."""
    if request_id > _MOST_UINT32:
        return encode({1: 4, 2: request_id, 5: {"progress": 1.0}})
    return END_FRAME.pack(END_BYTES, END_TAGS[0], _ID, request_id, END_TAGS[2])
