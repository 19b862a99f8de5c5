"""Owns one call that another server answers, with the face of a call of a cap: events, a result, a cancel.

It does not know HTTP towards the client. A task of its own reads the answer, no further ahead than some events that
nobody took yet: a client that reads slowly holds the other server up.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Self

from cartdeck.events import Data, End, Event, KeptOutput, Result
from cartdeck.server.external.answering import Answer
from cartdeck.server.external.asking import Asked, json_of
from cartdeck.server.external.events_in import data_of_events
from cartdeck.server.external.failing import broken_off, is_about_counts, not_understood, told_in_stream
from cartdeck.server.external.place import Place
from cartdeck.server.external.servers import Servers
from cartdeck.server.fields import as_record
from cartdeck.server.models.directory import Kind
from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_WAITING: Final = 256
"""Events that were not taken; the answer is read on when they were."""
LAST_S: Final = 0.2
"""For the end of a stream behind its last event."""
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of an answer that comes as a whole."""


class ExternalCall:
    """Use it as an async context manager. Leaving it before the end gives the request up, and closes its connection."""

    def __init__(self, servers: Servers, place: Place, asked: Asked, *, timeout_s: float | None) -> None:
        self._servers = servers
        self._place = place
        self._asked = asked
        self._timeout_s = timeout_s
        self._answer = Answer(asked)
        self._task: asyncio.Task[None] | None = None
        self._events: list[Event] = []
        self._kept: list[Data] = []
        """All of an answer that is collected."""
        self._is_collecting = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._error: CartdeckError | None = None
        self._has_told_end = False
        self._begun_s = time.monotonic()

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._on_done)
        self._servers.stopping.append(self._stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._servers.stopping.remove(self._stop)
        self.cancel("the caller left the call")
        await asyncio.wait([self._task])

    def _stop(self) -> None:
        self.end_with(failure(Code.ABORTED, "The server was stopped while the call ran."))

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the request up. Does nothing after the end."""
        self.end_with(failure(Code.CANCELLED, f"the call of {self._place.name} was cancelled: {reason}"))

    def end_with(self, error: CartdeckError) -> None:
        """End with that error, unless it has ended."""
        if self._task is not None and not self._task.done():
            self._error = self._error or error
            self._task.cancel()
            self._news.set()

    async def next_events(self) -> list[Event]:
        """The next events, at least one; [] after the end. Raises the call's error, after what came before it."""
        assert self._task is not None
        while not self._events and self._error is None and not self._task.done():
            self._news.clear()
            await self._news.wait()
        if self._events:
            events, self._events = self._events, []
            self._room.set()
            return events
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._has_told_end:
            return []
        self._has_told_end = True
        return [End(1.0, self._answer.provenance)]

    async def collect(self) -> Result:
        """Wait for the end; the result. Raises the call's error."""
        self._is_collecting = True
        while events := await self.next_events():
            self._kept += (one for one in events if isinstance(one, Data))
        return self.result

    @property
    def result(self) -> Result:
        """What came, once the end was told: the outputs only where they were collected."""
        sequences = ("", "events") if self._asked.kind is Kind.EMBEDDING else ("events", "segments")
        return Result(_outputs(self._kept, sequences), 1.0, self._answer.provenance)

    # -- the task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            known = isinstance(error, CartdeckError)
            self._error = error if known else not_understood(self._place, f"{type(error).__name__}: {error}")
        elif task.cancelled() and self._error is None:
            self._error = failure(Code.CANCELLED, f"the call of {self._place.name} was cancelled")
        self._news.set()

    async def _work(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._ask()
        except TimeoutError:
            message = f"The call of {self._place.name} did not end within {self._timeout_s:g} s"
            raise failure(Code.TIMED_OUT, message, phase="external") from None
        self._answer.provenance["external"] = {"url": self._place.url, "model": self._place.model}
        timing = self._answer.provenance.setdefault("timing", {})
        timing["total_s"] = time.monotonic() - self._begun_s

    async def _ask(self) -> None:
        if self._place.url in self._servers.uncounting:
            self._asked = self._asked.without_counts()
        try:
            await self._send()
        except CartdeckError as error:
            if not is_about_counts(error) or "stream_options" not in self._asked.fields:
                raise
            self._servers.uncounting.add(self._place.url)
            self._asked = self._asked.without_counts()
            await self._send()

    async def _send(self) -> None:
        asked, fields = self._asked, self._asked.fields
        if asked.file is None:
            sent: dict[str, Any] = {"content": json_of(fields)}
        else:
            await asked.file.seek(0)
            name = asked.file.filename or "recording"
            kind = asked.file.content_type or "application/octet-stream"
            sent = {"data": fields, "files": {"file": (name, asked.file.file, kind)}}
        async with self._servers.post(self._place, asked.path, **sent) as response:
            try:
                if asked.is_stream and "event-stream" in response.headers.get("content-type", ""):
                    await self._read_stream(response)
                else:
                    await self._tell(self._answer.whole(await self._read_whole(response)))
                await self._tell(self._answer.end())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise not_understood(self._place, f"{type(error).__name__}: {error}") from None

    async def _read_stream(self, response: Any) -> None:
        is_done = False
        async with aclosing(data_of_events(response.aiter_bytes())) as events:
            async for data in events:
                if data == b"[DONE]":
                    is_done = True
                    break
                await self._tell(self._answer.chunk(self._record(data)))
            if not is_done and not self._answer.is_whole:
                raise broken_off(self._place, "its stream ended before the text did")
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):  # to its end, so that the connection can be used again
                    async for _ in events:
                        pass

    async def _read_whole(self, response: Any) -> Mapping[str, Any]:
        pieces, size = list[bytes](), 0
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
        return self._record(b"".join(pieces))

    def _record(self, data: bytes) -> Mapping[str, Any]:
        """The record in `data`. Raises ValueError or TypeError for what is none, and the error that it tells of."""
        value: Any = json.loads(data)
        if not isinstance(value, Mapping):
            raise TypeError("it is no record")
        record = as_record(value)
        if record.get("error"):
            raise told_in_stream(self._place, record["error"])
        return record

    async def _tell(self, events: Sequence[Event]) -> None:
        if not events:
            return
        timing = self._answer.provenance.setdefault("timing", {})
        timing.setdefault("first_token_s", time.monotonic() - self._begun_s)
        self._events += events
        self._news.set()
        while len(self._events) >= MOST_WAITING and not self._is_collecting:
            self._room.clear()
            await self._room.wait()


def _outputs(data: Sequence[Data], sequences: Sequence[str]) -> dict[str, KeptOutput]:
    outputs: dict[str, KeptOutput] = {}
    for one in data:
        kept = outputs.setdefault(one.output, KeptOutput(is_sequence=one.output in sequences))
        kept.pieces.append(one.value)
    return outputs
