"""Owns the bytes of one frame: encoding, and strict decoding by the table.

It does not know which frames may follow which.
"""

from struct import Struct
from typing import Any, Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # msgpack ships no stubs

from cartdeck_protocol.wire.faults import frame_fault
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError

Buffer = bytes | memoryview
Fields = dict[int, Any]

OWN_BUFFER_BYTES: Final = 8 * 1024
"""From this size a payload is handed on as a buffer of its own: copying it costs more than one more iovec."""

LENGTH: Final = Struct(">I")
_pack_length = LENGTH.pack
_PAYLOAD_HEAD: Final = Struct(">2sI")

UNDECIDED: Final = -2
NO_FRAME: Final = -1

# For a number in any of its encodings: the first and last byte that hold it alone, else first byte → bytes that follow.
_Heads = tuple[int, int, dict[int, int]]
_MAP_HEADS: Final[_Heads] = (0x80, 0x8F, {0xDE: 2, 0xDF: 4})
_NUMBER_HEADS: Final[_Heads] = (0x00, 0x7F, {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8})

_FIRST_SIGNED: Final = 0xD0

_pack = cast("Any", msgpack).Packer(use_bin_type=True, autoreset=True).pack
_lossy_pack = cast("Any", msgpack).Packer(use_bin_type=True, autoreset=True, unicode_errors="backslashreplace").pack
_unpack = cast("Any", msgpack).unpackb


def encode(fields: Fields) -> bytes:
    """One frame of a map whose first key is the kind. LocalProtocolError for what is no data."""
    try:
        body: bytes = _pack(fields)
    except UnicodeEncodeError:  # a file name that is not UTF-8, in a message: its bytes leave as escapes
        body = _lossy_pack(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"a frame of kind {fields[1]} cannot be encoded: {error}") from error
    return _pack_length(len(body)) + body


def encode_apart(fields: Fields) -> bytes:
    """`encode` for a thread of its own: the packer that the others share is not made for two at once."""
    body: bytes = cast("Any", msgpack).packb(fields, use_bin_type=True)
    return _pack_length(len(body)) + body


def encode_with_payload(fields: Fields, payload: bytes) -> list[Buffer]:
    """One frame whose last field is a payload, without copying a large one."""
    if len(payload) < OWN_BUFFER_BYTES:
        fields[6] = payload
        return [encode(fields)]
    small = encode(fields)
    tail = _PAYLOAD_HEAD.pack(b"\x06\xc6", len(payload))
    # fixmap: the low four bits of the first byte count the entries, at most 12 here
    entries = bytes((small[LENGTH.size] + 1,))
    return [_pack_length(len(small) - LENGTH.size + len(tail) + len(payload)) + entries + small[5:] + tail, payload]


def peek_kind(body: memoryview, length: int) -> int:
    """The kind of a frame of `length` bytes from the first bytes of its body, in any legal encoding. `UNDECIDED` while
    they are too few, `NO_FRAME` where they cannot begin one."""
    try:
        _, position = _read_number(body, 0, _MAP_HEADS)
        key, position = _read_number(body, position, _NUMBER_HEADS)
        kind, _ = _read_number(body, position, _NUMBER_HEADS)
    except IndexError:
        return UNDECIDED if len(body) < length else NO_FRAME
    except ValueError:
        return NO_FRAME
    return kind if key == 1 else NO_FRAME


def _read_number(body: memoryview, position: int, heads: _Heads) -> tuple[int, int]:
    """The number at `position`, and where it ends. IndexError when bytes are missing, ValueError for another type."""
    first = body[position]
    low, high, sizes = heads
    if low <= first <= high:
        return first - low, position + 1
    if first not in sizes:
        raise ValueError(first)
    end = position + 1 + sizes[first]
    if end > len(body):
        raise IndexError(end)
    return int.from_bytes(body[position + 1 : end], "big", signed=first >= _FIRST_SIGNED), end


def decode(body: memoryview, *, frame: int, offset: int) -> Fields:
    """The map of one frame, checked against the table.

    RemoteProtocolError names frame number, stream offset and key.
    """
    try:
        # max_ext_len=0 refuses timestamps too, which msgpack makes without asking the hook
        fields: Any = _unpack(
            body, strict_map_key=False, object_pairs_hook=_unique, ext_hook=_refuse_ext, max_ext_len=0
        )
    except (ValueError, TypeError, OverflowError, MemoryError, msgpack.UnpackException) as error:
        message = str(error) or type(error).__name__
        raise RemoteProtocolError(f"not one msgpack map: {message}", frame=frame, offset=offset) from error
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"a frame is a map, found {type(fields).__name__}", frame=frame, offset=offset)
    checked = cast("Fields", fields)
    fault = frame_fault(checked)
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
