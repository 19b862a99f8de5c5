"""Owns what a connection may take until a request's head is there: so many bytes, and so long.

It does not know requests. uvicorn bounds neither: without this a client could send headers without end, or none.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cartdeck.server.options import RequestLimits


def connections(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """The protocol of connections with these limits."""

    class Connection(HttpToolsProtocol):
        """A connection whose requests' heads are bounded."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as in uvicorn
            super().connection_made(transport)
            self._head_bytes = self._heads = 0
            self._is_in_head, self._has_begun = True, False
            self._timer: asyncio.TimerHandle | None = None
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            was_in_head, heads = self._is_in_head, self._heads
            super().data_received(data)
            if was_in_head and self._heads == heads and not self.transport.is_closing():  # nothing else is in `data`
                self._head_bytes += len(data)
                if self._head_bytes > limits.head_bytes:
                    message = f"The request's head is larger than {limits.head_bytes} bytes."
                    self._refuse(b"431 Request Header Fields Too Large", "TOO_LARGE", message)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._is_in_head = self._has_begun = True
            self._await_head()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._is_in_head = True  # what comes next is one

        def on_headers_complete(self) -> None:
            self._is_in_head = self._has_begun = False
            self._head_bytes = 0
            self._heads += 1
            self._forget_timer()
            super().on_headers_complete()

        def _await_head(self) -> None:
            if self._timer is None:
                call: Callable[[], Any] = self._on_late
                self._timer = self.loop.call_later(limits.head_s, call)

        def _forget_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _on_late(self) -> None:
            self._timer = None
            if self._has_begun:
                message = f"The request's head did not come within {limits.head_s:g} s."
                self._refuse(b"408 Request Timeout", "SLOW_HEAD", message)
            else:
                self.transport.close()

        def _refuse(self, status: bytes, code: str, message: str) -> None:
            """Say so, unless an answer is under way, and close."""
            if self.cycle is None or self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison] - None before the first
                error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
                body = json.dumps({"error": {**error, "class": "input"}}).encode()
                head = (
                    b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head % (status, len(body)) + body)
            self.transport.close()

    return Connection
