"""Owns what a request needs of its session, as an interface.

It does not know the session, which knows requests and must not be known by them.
"""

from typing import Protocol

from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import Connection, Exchange


class Link(Protocol):
    """A session, as its requests see it."""

    connection: Connection

    @property
    def is_blocked(self) -> bool:
        """The process does not read what is sent to it."""
        ...

    def flush_soon(self) -> None:
        """Send what the connection holds at the end of this turn of the loop."""
        ...

    def give_up(self, exchange: Exchange, error: CartdeckError) -> None:
        """Send CANCEL; `error` is the answer unless a terminal comes in time."""
        ...
