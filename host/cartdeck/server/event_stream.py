"""Owns a response that is a stream of server-sent events (WHATWG HTML, section 9.2): its first byte, its comments, its
error, its end.

It does not know what the events hold. Until there is something to say no status is sent, so an error that comes first
has its own; once the stream has begun an error is an event of it, and never a silent end.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from cartdeck.server.pace import Departure
from cartdeck.server.refusal import Refused, reply_to
from cartdeck_protocol.errors import CartdeckError, Code, failure

COMMENT: Final = b": waiting\n\n"
DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would keep pieces back
]
_LOGGER: Final = logging.getLogger("cartdeck.server")


def event(data: Any, name: str | None = None) -> bytes:
    """One event with JSON data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


class EventStream:
    """An ASGI response. `pieces` gives events as bytes, or b"" when some time passed without one; `cancel` ends its
    work when the client goes away."""

    def __init__(self, pieces: AsyncGenerator[bytes], *, cancel: Callable[[str], None], comment_s: float) -> None:
        self._pieces = pieces
        self._cancel = cancel
        self._comment_s = comment_s
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with Departure(receive, self._cancel) as departure:
            try:
                await self._send_all(send)
            except (CartdeckError, Refused) as error:
                if departure.has_come:
                    return
                if not self._has_begun:
                    raise
                await self._end(send, event({"error": reply_to(error).record}, "error"))
            except Exception as error:
                if not self._has_begun:
                    raise
                _LOGGER.exception("a stream failed")
                broken = failure(Code.INTERNAL, f"unexpected {type(error).__name__}; the server's log has more")
                await self._end(send, event({"error": reply_to(broken).record}, "error"))
            else:
                await self._end(send, b"")

    async def _send_all(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        said_s = clock()
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if not piece:
                    if clock() - said_s < self._comment_s * 0.95:
                        continue
                    piece = COMMENT  # noqa: PLW2901  # what is said in its place
                if not self._has_begun:
                    self._has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                said_s = clock()

    async def _end(self, send: Send, last: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": last, "more_body": False})
