"""Owns the way from work on the device's thread to its request: what is said as it comes, its place, how it ends.

It does not know what the work does, nor who runs it.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any, Final

from cartdeck_protocol.errors import Code, failure

MOST_UNREAD_CHARACTERS: Final = 4 * 1024 * 1024
"""Above it a job waits for its reader: far more than a text that fits a context has."""

LONGEST_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.05


class StopFlag:
    """Set by whoever gives up; asked at each step of the work, inside a model's forward pass too."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        self.is_set = self._event.is_set

    def check(self) -> None:
        """Raises `CANCELLED` once the flag is set."""
        if self._event.is_set():
            raise failure(Code.CANCELLED, "given up by the caller", phase="inference")


class Job:
    """One request's work on the device's thread, made on the event loop's thread.

    The device's side calls `say`, `put` and `touch`, and asks `stop`; the loop's side reads `pieces` and `take`.
    """

    def __init__(self) -> None:
        self.position = 0
        """How many jobs come before this one; 0 when it runs or is over."""
        self.stop = StopFlag()
        self.has_said = False
        """Whether the reader may have something of it: then the work cannot be done a second time."""
        self.outcome: Future[None] = Future()
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._items: list[Any] = []
        self._unread = 0
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_waking = False

    def cancel(self) -> None:
        """Gives the work up: it is left out while it waits, and ends at its next step while it runs."""
        self.stop.set()
        self.outcome.cancel()
        self.touch()

    # the device's thread

    def say(self, text: str) -> None:
        """Hands text to the reader. A reader that leaves too much of it makes the job wait, and fail in the end."""
        self.has_said = True
        with self._lock:
            self._texts.append(text)
            self._unread += len(text)
        self.touch()
        started = time.monotonic()
        while self._unread > MOST_UNREAD_CHARACTERS:
            self.stop.check()
            if time.monotonic() - started > LONGEST_WAIT_S:
                raise failure(
                    Code.READER_STALLED,
                    f"{self._unread:,} characters of the answer were not read in {LONGEST_WAIT_S:.0f} s",
                )
            time.sleep(_LOOK_S)

    def put(self, item: Any) -> None:
        """Hands something that is no text to the reader."""
        self.has_said = True
        with self._lock:
            self._items.append(item)
        self.touch()

    def touch(self) -> None:
        """Wakes the reader, which looks at whatever the work counts."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: the process is leaving
            self.stop.set()

    # the event loop's thread

    async def pieces(self) -> AsyncGenerator[str]:
        """The text as it comes; "" when the work counted or put something and said nothing. Ends with the work, or
        raises what it raised."""
        is_over = False
        while not is_over:
            await self._event.wait()
            self._event.clear()
            is_over = self.outcome.done()  # asked before the text is taken, so that the last of it is not left behind
            with self._lock:
                texts, self._texts = self._texts, []
                self._unread = 0
            yield "".join(texts)
        if self.outcome.cancelled():
            raise failure(Code.CANCELLED, "the request was given up before its turn came", phase="queue")
        self.outcome.result(timeout=0)

    def take(self) -> list[Any]:
        """What was put since the last time."""
        with self._lock:
            items, self._items = self._items, []
        return items

    def _wake(self) -> None:
        self._is_waking = False
        self._event.set()
