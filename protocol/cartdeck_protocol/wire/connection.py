"""Owns the protocol at one end of a pipe: bytes in, events out; commands in, bytes out.

It knows no clock, no descriptor, no task and no lock. Both ends run this code with another role.
"""

from cartdeck_protocol.wire.events import Event
from cartdeck_protocol.wire.limits import Limits
from cartdeck_protocol.wire.reception import Reception
from cartdeck_protocol.wire.sender import Role, Sender


class Connection(Sender):
    """One end of a connection. `receive` and `received` return events; the inherited methods are the commands, and
    `outgoing` returns the bytes that they, and the answers to what was received, add up to."""

    def __init__(self, role: Role, *, limits: Limits | None = None, manifest: bytes = b"", software: str = "") -> None:
        super().__init__(role, limits=limits, manifest=manifest, software=software)
        self._reception = Reception(self)

    def buffer(self) -> memoryview:
        """Where the next bytes from the pipe go: never empty. Read into it, then call `received`."""
        return self._reception.buffer()

    def received(self, size: int) -> list[Event]:
        """`size` bytes were read into `buffer()`: what they mean. After `ConnectionDamaged` nothing more comes."""
        return self._reception.received(size)

    def receive(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """The same for bytes that lie elsewhere. Any split of the same bytes gives the same events (law 12)."""
        found: list[Event] = []
        rest = memoryview(data)
        while rest and self.error is None:
            space = self.buffer()
            size = min(len(space), len(rest))
            space[:size] = rest[:size]
            found += self.received(size)
            rest = rest[size:]
        return found

    @property
    def received_frames(self) -> int:
        """Frames that came whole and were dealt with."""
        return self._reception.received_frames

    @property
    def is_between_frames(self) -> bool:
        """False when the bytes so far end inside a frame: an end of file now is a cut."""
        return self._reception.is_between_frames
