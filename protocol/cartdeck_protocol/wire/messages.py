"""Owns the frames that this end composes: their metas, and the bounds within which the other end accepts them.

It does not know when a frame may leave.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.frames import Fields, decode, encode, encode_apart
from cartdeck_protocol.wire.kinds import API_VERSION, PROTOCOL_VERSION, Kind
from cartdeck_protocol.wire.limits import MAX_CONTROL, MAX_HELLO, Limits
from cartdeck_protocol.wire.stream import OutStream
from cartdeck_protocol.wire.templates import encode_plain_end
from cartdeck_protocol.wire.violation import LocalProtocolError, RemoteProtocolError

FEATURES: Final = frozenset({"credit", "inline-arguments", "whole-streams"})
_MOST_TEXT: Final = 8 * 1024
_MOST_WORD: Final = 200
"""Characters of a message, and of a name inside a meta: what is longer is cut, so that the frame leaves at all."""
_ERROR_TEXTS: Final = (("code", _MOST_WORD), ("message", _MOST_TEXT), ("phase", _MOST_WORD), ("argument", _MOST_WORD))


def hello_frame(limits: Limits, *, software: str, manifest: bytes | None) -> bytes:
    """HELLO; `manifest` is None from a host. FRAME_TOO_LARGE for a manifest that is."""
    meta: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "api": API_VERSION,
        "limits": limits.to_wire(),
        "features": sorted(FEATURES),
        "software": software,
    }
    if manifest is not None:
        meta["manifest"] = manifest
    return _bounded({1: 0, 2: 0, 5: meta}, MAX_HELLO)


def request_frame(
    request_id: int, cap: str, *, arguments: Mapping[str, bytes] | None, complete: bool, parent: int | None
) -> bytes:
    """REQ. FRAME_TOO_LARGE when cap and arguments are more than one frame."""
    meta: dict[str, Any] = {}
    if arguments:
        meta["arguments"] = dict(arguments)
    if complete:
        meta["complete"] = True
    if parent is not None:
        meta["parent"] = parent
    fields: Fields = {1: 1, 2: request_id, 10: cap}
    if meta:
        fields[5] = meta
    return _bounded(fields)


def end_frame(request_id: int, *, progress: float | None, provenance: Mapping[str, Any] | None) -> bytes:
    """The responder's END. FRAME_TOO_LARGE or LocalProtocolError for a provenance that would be refused."""
    reached = 1.0 if progress is None else fraction(progress)
    if reached == 1.0 and not provenance:
        return encode_plain_end(request_id)
    meta: dict[str, Any] = {"progress": reached}
    if not provenance:
        return encode({1: 4, 2: request_id, 5: meta})
    meta["provenance"] = dict(provenance)
    return _acceptable({1: 4, 2: request_id, 5: meta})


def error_frame(request_id: int, error: CartdeckError) -> bytes:
    """ERR; it always fits and is always accepted: details that are too large, or no plain data, stay behind."""
    meta = error.to_wire()
    for name, most in _ERROR_TEXTS:
        if name in meta:
            meta[name] = str(meta[name])[:most]
    fields: Fields = {1: 6, 2: request_id, 5: meta}
    if "details" in meta:
        try:
            return _acceptable(fields)
        except CartdeckError:
            del meta["details"]
    return encode(fields)


def log_frame(
    request_id: int,
    level: str,
    message: str,
    *,
    progress: float | None,
    phase: str | None,
    work: float | None,
    total: float | None,
) -> bytes:
    """LOG. A number that is NaN, infinite or too large for the wire is left out; a progress is brought into [0, 1]."""
    meta: dict[str, Any] = {"level": level[:_MOST_WORD], "message": message[:_MOST_TEXT]}
    if progress is not None and _is_finite(progress):
        meta["progress"] = fraction(progress)
    if phase is not None:
        meta["phase"] = phase[:_MOST_WORD]
    if work is not None and (number := _number(work)) is not None:
        meta["work"] = number
    if total is not None and (number := _number(total)) is not None:
        meta["total"] = number
    return encode({1: 5, 2: request_id, 5: meta})


def cancel_frame(request_id: int, reason: str) -> bytes:
    return encode({1: 12, 2: request_id, 5: {"reason": reason[:_MOST_TEXT]}})


def start_fields(stream: OutStream) -> Fields:
    """The fields of a STREAM_START, without a payload."""
    fields: Fields = {1: 8, 2: stream.request_id, 11: stream.number}
    if stream.media:
        fields[12] = stream.media
    if stream.is_sequence:
        fields[17] = True
    if stream.name:
        fields[21] = stream.name
    return fields


def encode_heartbeat(*, rss_bytes: int, open_requests: int, stragglers: int, strays: int) -> bytes:
    """A HEARTBEAT frame. It needs no connection, so that a timer thread can make one."""
    meta = {"rss_bytes": rss_bytes, "open_requests": open_requests, "stragglers": stragglers, "strays": strays}
    return encode_apart({1: int(Kind.HEARTBEAT), 2: 0, 5: meta})


def fraction(progress: float) -> float:
    """A progress that may leave: NaN and infinities count as nothing done."""
    return float(min(1.0, max(0.0, progress))) if _is_finite(progress) else 0.0


def _number(value: float) -> float | None:
    """A count as the wire can hold it: int or float and nothing derived from them, such as a bool."""
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else None
    return float(value) if isfinite(value) else None


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an int that no float can hold
        return True


def _bounded(fields: Fields, most: int = MAX_CONTROL) -> bytes:
    """A frame of bounded size. FRAME_TOO_LARGE names size and limit."""
    frame = encode(fields)
    size = len(frame) - 4
    if size > most:
        raise failure(
            Code.FRAME_TOO_LARGE,
            f"{Kind(fields[1]).name} would be {size} bytes; at most {most} go into one frame",
            details={"size": size, "limit": most},
        )
    return frame


def _acceptable(fields: Fields) -> bytes:
    """A bounded frame with values that others made, decoded again: what the other end would end the connection for (a
    key that is no text, a value nested too deep) is an error of the one who made it."""
    frame = _bounded(fields)
    try:
        decode(memoryview(frame)[4:], frame=0, offset=0)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"{Kind(fields[1]).name} would be refused: {error.bare_message}") from error
    return frame
