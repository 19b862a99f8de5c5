"""Owns `GET /events`: how a server does, told as it changes, to a page that stays open.

It does not know what is told.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request

from cartdeck.server.event_stream import EventStream, event
from cartdeck.server.live.feed import LiveFeed, Reader
from cartdeck.server.service import Service
from cartdeck_protocol.errors import Code, failure

EVERY_S: Final = 0.25
MOST_READERS: Final = 64


class LiveEndpoint:
    """On one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feed = LiveFeed(service)
        self._readers = 0

    async def events(self, request: Request) -> Any:
        """`?log=NAME` tells that cartridge's log as well. Raises QUEUE_FULL for more readers than are bearable."""
        if self._readers >= MOST_READERS:
            message = f"{self._readers} pages are open, and no more are told what happens."
            raise failure(Code.QUEUE_FULL, message, details={"retry_after_s": 30.0})
        reader = Reader(self._feed, self._service, log=request.query_params.get("log"))
        is_gone = asyncio.Event()
        return EventStream(
            self._pieces(reader, is_gone), cancel=lambda _: is_gone.set(), comment_s=self._service.options.comment_s
        )

    async def _pieces(self, reader: Reader, is_gone: asyncio.Event) -> AsyncGenerator[bytes]:
        self._readers += 1
        try:
            while not (is_gone.is_set() or self._service.is_stopping):
                yield b"".join(event(data, name) for name, data in reader.news())
                try:
                    async with asyncio.timeout(EVERY_S):
                        await is_gone.wait()
                except TimeoutError:
                    pass
        finally:
            self._readers -= 1
