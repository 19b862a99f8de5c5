"""Owns the two errors of the wire: their fault and ours. It does not know how they are answered."""

from cartdeck_protocol.errors import Code, InternalFailure


class RemoteProtocolError(InternalFailure):
    """The other end broke the protocol. `frame` counts from 0, `offset` is the frame's first byte in the stream,
    `key` is the field at fault, where there is one."""

    def __init__(
        self,
        message: str,
        *,
        code: Code = Code.PROTOCOL_VIOLATION,
        frame: int | None = None,
        offset: int | None = None,
        key: str | None = None,
    ) -> None:
        where = "" if frame is None else f" (frame {frame}, byte {offset}" + (f", key {key})" if key else ")")
        details = {"frame": frame, "offset": offset, "key": key}
        super().__init__(code, message + where, details={k: v for k, v in details.items() if v is not None})
        self.bare_message = message
        """The message without the place."""
        self.frame = frame
        self.offset = offset
        self.key = key


class LocalProtocolError(InternalFailure):
    """This end was asked to break the protocol: a bug in the code that drives the connection."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INTERNAL, message)
