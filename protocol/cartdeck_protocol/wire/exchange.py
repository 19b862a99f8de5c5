"""Owns the record of one request as one end sees it: who asked, which streams are open, what is still to come.

It does not know frames or bytes; the connection moves it from state to state.
"""

from typing import Any

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire.stream import InStream, OutStream


class Exchange:
    """One request and its answer. `owner` is free for whoever drives it."""

    __slots__ = (
        "cancelled", "discarding", "end_waiting", "id", "in_streams", "is_open", "is_requester",
        "next_stream", "out_streams", "owner", "their_end", "total_in",
    )  # fmt: skip

    def __init__(self, request_id: int, *, is_requester: bool) -> None:
        self.id = request_id
        self.is_requester = is_requester
        self.is_open = True
        self.cancelled = False
        """CANCEL was sent (as requester) or received (as responder)."""
        self.discarding = False
        """Everything but the terminal is passed over."""
        self.their_end = False
        """The requester's END is here, or REQ said that nothing follows."""
        self.end_waiting: bytes | None = None
        """This end has said END: the frame, which waits until this end's streams have left; empty when REQ said it."""
        self.next_stream = 0
        self.total_in = 0
        self.out_streams: dict[int, OutStream] = {}
        self.in_streams: dict[int, InStream] = {}
        self.owner: Any = None

    def close(self, error: CartdeckError | None = None) -> None:
        """The exchange is over: nothing more is sent or taken for it. Whoever still writes gets `error`; without one,
        CANCELLED, since the call has ended."""
        self.is_open = False
        for stream in self.in_streams.values():
            stream.ended = True
        if self.out_streams:
            reason = error or failure(Code.CANCELLED, "the call has ended")
            for stream in tuple(self.out_streams.values()):
                stream.kill(reason)
            self.out_streams.clear()
