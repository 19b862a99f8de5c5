"""Owns the bytes of one frame: encoding, and strict decoding by the table.

It does not know which frames may follow which.
"""

from struct import Struct
from typing import Any, Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck_protocol.wire.kinds import KEYS, META, TYPES, Key, Kind
from cartdeck_protocol.wire.limits import MAX_DEPTH
from cartdeck_protocol.wire.violation import RemoteProtocolError

Buffer = bytes | memoryview
Fields = dict[int, Any]

OWN_BUFFER_BYTES: Final = 8 * 1024
"""From this size a payload is handed on as a buffer of its own: copying it costs more than one more iovec."""

LENGTH: Final = Struct(">I")
# A CHUNK's head as one fixed template: packing it costs a tenth of a generic map. Any other legal encoding of the
# same map is accepted too, through the generic decoder.
CHUNK_HEAD: Final = Struct(">I3s2sI2sH2sI2sI")
CHUNK_TAGS: Final = (b"\x85\x01\x03", b"\x02\xce", b"\x0b\xcd", b"\x0e\xce", b"\x06\xc6")
_CHUNK_BODY_HEAD: Final = CHUNK_HEAD.size - LENGTH.size
_PAYLOAD_HEAD: Final = Struct(">2sI")

_pack = cast("Any", msgpack).Packer(use_bin_type=True, autoreset=True).pack
_unpack = cast("Any", msgpack).unpackb


def encode(fields: Fields) -> bytes:
    """One frame of a map whose first key is the kind."""
    body: bytes = _pack(fields)
    return LENGTH.pack(len(body)) + body


def encode_with_payload(fields: Fields, payload: bytes) -> list[Buffer]:
    """One frame whose last field is a payload, without copying a large one."""
    body: bytes = _pack(fields)
    tail = _PAYLOAD_HEAD.pack(b"\x06\xc6", len(payload))
    # fixmap: the low four bits of the first byte count the entries, at most 12 here
    head = LENGTH.pack(len(body) + len(tail) + len(payload)) + bytes((body[0] + 1,)) + body[1:] + tail
    return [head + payload] if len(payload) < OWN_BUFFER_BYTES else [head, payload]


def encode_chunk(request_id: int, stream: int, index: int, payload: Buffer) -> list[Buffer]:
    size = len(payload)
    if request_id > 0xFFFFFFFF or stream > 0xFFFF or index > 0xFFFFFFFF:
        wide = {Key.KIND: 3, Key.ID: request_id, Key.STREAM: stream, Key.CHUNK_INDEX: index}
        return encode_with_payload({int(key): value for key, value in wide.items()}, bytes(payload))
    head = CHUNK_HEAD.pack(
        _CHUNK_BODY_HEAD + size, CHUNK_TAGS[0], CHUNK_TAGS[1], request_id, CHUNK_TAGS[2], stream, CHUNK_TAGS[3], index,
        CHUNK_TAGS[4], size,
    )  # fmt: skip  # the template reads in its own order
    return [head + payload] if size < OWN_BUFFER_BYTES else [head, payload]


def peek_kind(first: int, key: int, kind: int) -> int:
    """The kind of a frame from the first three bytes of its body; -1 where they cannot begin one."""
    if (first & 0xF0) == 0x80 and key == Key.KIND and kind in KEYS:
        return kind
    return -1


def decode(body: memoryview, *, frame: int, offset: int) -> Fields:
    """The map of one frame, checked against the table.

    RemoteProtocolError names frame number, stream offset and key.
    """
    try:
        fields = _unpack(body, strict_map_key=False, object_pairs_hook=_unique, ext_hook=_refuse_ext, timestamp=0)
    except RecursionError as error:
        raise RemoteProtocolError("nested too deep", frame=frame, offset=offset) from error
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        message = str(error) or type(error).__name__
        raise RemoteProtocolError(f"not one msgpack map: {message}", frame=frame, offset=offset) from error
    if type(fields) is not dict:
        raise RemoteProtocolError(f"a frame is a map, found {type(fields).__name__}", frame=frame, offset=offset)
    checked = cast("Fields", fields)
    fault = _fault_of(checked)
    if fault is not None:
        message, key = fault
        raise RemoteProtocolError(message, frame=frame, offset=offset, key=key)
    return checked


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice in a map")
    return fields


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code}")


def _fault_of(fields: Fields) -> tuple[str, str] | None:
    """What is wrong with a decoded map, and the key at fault."""
    kind = fields.get(Key.KIND)
    if type(kind) is not int or kind not in KEYS:
        return f"unknown kind {kind!r}", "kind"
    required, allowed = KEYS[kind]
    for key in required:
        value = fields.get(key)
        if type(value) is not TYPES[key] or (type(value) is int and not 0 <= value < 1 << 63):
            return _type_fault(kind, key, fields)
    for key in allowed:
        if key in fields:
            value = fields[key]
            if type(value) is not TYPES[key]:
                return _type_fault(kind, key, fields)
    meta = fields.get(Key.META)
    if meta:
        fault = depth_fault(meta, MAX_DEPTH)
        if fault is not None:
            return fault, "meta"
    return None


def _type_fault(kind: int, key: Key, fields: Fields) -> tuple[str, str]:
    name = key.name.lower()
    wanted = "uint" if TYPES[key] is int else TYPES[key].__name__
    if key not in fields:
        return f"{Kind(kind).name} lacks {name} ({wanted})", name
    value = fields[key]
    found = "a negative or too large number" if type(value) is int else type(value).__name__
    return f"{Kind(kind).name}'s {name} must be {wanted}, found {found}", name


_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))


def depth_fault(value: Any, depth: int) -> str | None:
    """What is wrong inside a meta: too deep, or a map whose keys are not text."""
    kind = cast("type[Any]", type(value))
    if kind in _SCALARS:
        return None
    if depth == 0:
        return f"nested deeper than {MAX_DEPTH}"
    if kind is dict:
        entries = cast("dict[Any, Any]", value)
        for key in entries:
            if type(key) is not str:
                return f"a key must be text, found {type(key).__name__}"
        inner: Any = entries.values()
    elif kind is list:
        inner = value
    else:
        return f"a value of type {kind.__name__}"
    for one in inner:
        if type(one) not in _SCALARS:
            fault = depth_fault(one, depth - 1)
            if fault is not None:
                return fault
    return None


def meta_fault(kind: int, meta: dict[str, Any]) -> str | None:
    """What is wrong with the fields of a meta, by the table."""
    for name, (types, is_required) in META[kind].items():
        value = meta.get(name)
        if value is None:
            if is_required:
                return f"{Kind(kind).name}'s meta lacks {name}"
        elif type(value) not in types:
            return f"{Kind(kind).name}'s meta {name} must be {types[0].__name__}, found {type(value).__name__}"
    return None
