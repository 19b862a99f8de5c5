"""Owns one stream on its way from one session to another.

It does not know requests. A chunk counts as taken when it has left on the other side: credit is handed on hop by hop,
and what the engine holds of a stream is never more than one window.
"""

from cartdeck.peers.link import Link
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import InStream, OutStream


class Pump:
    """Chunks of `source`, from `origin`, into an outgoing stream of another session, as soon as there is one."""

    __slots__ = ("_held", "_origin", "_target", "_untaken", "has_ended", "out", "source")

    def __init__(self, source: InStream, origin: Link) -> None:
        self.source = source
        self.out: OutStream | None = None
        self.has_ended = False
        self._origin = origin
        self._target: Link | None = None
        self._held: list[bytes] = []
        self._untaken = 0

    def attach(self, out: OutStream, target: Link) -> None:
        """The other side is there: what was held goes in."""
        self.out, self._target = out, target
        out.on_writable = self._on_left
        held, self._held = self._held, []
        for payload in held:
            self._write(payload)
        if self.has_ended:
            out.close()
        target.flush_soon()

    def put_whole(self, payload: bytes) -> None:
        """The source is one payload, and has ended; it needs no credit."""
        self.has_ended = True
        if self.out is None:
            self._held.append(payload)
        else:
            self._write(payload)
            self._close()

    def put(self, payload: bytes) -> None:
        self._untaken += 1
        if self.out is None:
            self._held.append(payload)
        else:
            self._write(payload)
            self._flush()

    def end(self) -> None:
        self.has_ended = True
        if self.out is not None:
            self._close()

    def _close(self) -> None:
        if self.out is not None and self.out.error is None:
            self.out.close()
        self._flush()

    def _write(self, payload: bytes) -> None:
        assert self.out is not None
        try:
            self.out.write(payload)
        except CartdeckError:  # nobody wants it any more: it is discarded, and its sender is not held up
            self._on_left()

    def _on_left(self) -> None:
        """All that was written has left, or is lost."""
        untaken, self._untaken = self._untaken, 0
        if untaken:
            self.source.take(untaken)
            self._origin.flush_soon()

    def _flush(self) -> None:
        if self._target is not None:
            self._target.flush_soon()
