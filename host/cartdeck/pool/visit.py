"""Owns a request that only wants a session to be ready: what `Engine.load` waits with. It opens nothing there."""

import asyncio
from typing import Any

from cartdeck.request import Request
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import InStream, Logged


class Visit(Request):
    """`answer` is done when the session is ready, or says why it is not."""

    __slots__ = ("answer",)

    is_visit = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.answer: asyncio.Future[None] = loop.create_future()

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def on_failed(self, error: CartdeckError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def on_notice(self, message: str, phase: str) -> None:
        pass  # nobody listens

    def on_opened(self) -> None:
        raise AssertionError("a visit is never opened")

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        raise AssertionError("a visit is never opened")

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        raise AssertionError("a visit is never opened")

    def on_stream_end(self, stream: InStream) -> None:
        raise AssertionError("a visit is never opened")

    def on_log(self, event: Logged) -> None:
        raise AssertionError("a visit is never opened")

    def reader_since_s(self, now_s: float) -> float | None:
        return None
