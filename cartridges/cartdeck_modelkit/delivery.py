"""Owns the way from the thread that owns a model to one request: a bounded queue, and how it ends.

It does not know what travels. The owner's side never waits: it asks `is_full` and leaves a request out of its work
until its reader has taken something.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, TypeVar

from cartdeck_modelkit.bell import Bell, bell_of
from cartdeck_protocol.errors import Code, failure

T = TypeVar("T")

MOST_UNREAD: Final = 16_384
"""Characters, a few more than a reader takes in one turn of its loop at the fastest engine's pace."""

LONGEST_WAIT_S: Final = 60.0
"""How long a full queue is left alone before its request is given up."""


class Delivery(Generic[T]):
    """Made on the reader's side. `on_room()` is called, from any thread, when a full queue has room again."""

    def __init__(self, *, on_room: Callable[[], None] = lambda: None, most_unread: int = MOST_UNREAD) -> None:
        self.on_room = on_room
        self._most_unread = most_unread
        self._lock = threading.Lock()
        self._items: list[T] = []
        self._unread = 0
        self._full_since: float | None = None
        self._error: BaseException | None = None
        self._is_over = False
        self._is_waking = False
        self._send: Callable[[T], bool] | None = None
        try:
            self._bell: Bell | None = bell_of(asyncio.get_running_loop())
        except RuntimeError:
            self._bell = None  # taken by `take` alone
        self._event = asyncio.Event()

    # the owner's thread

    @property
    def is_full(self) -> bool:
        """Whether the reader has left so much that it should get no more for now."""
        return self._full_since is not None

    @property
    def is_over(self) -> bool:
        return self._is_over

    def put(self, item: T, weight: int = 1) -> None:
        """Hands something to the reader; `weight` is what it counts of the bound, in characters."""
        with self._lock:
            if self._send is not None:
                if self._send(item):
                    return
                self._send = None  # what follows must not come before it
            self._items.append(item)
            self._unread += weight
            if self._unread >= self._most_unread and self._full_since is None:
                self._full_since = time.monotonic()
        self.touch()

    def touch(self) -> None:
        """Wakes the reader, which looks at whatever is counted for it."""
        if not self._is_waking and self._bell is not None:
            self._is_waking = True
            self._bell.ring(self._wake)

    def end(self, error: BaseException | None = None) -> None:
        """Says that nothing follows; an error is raised again on the reader's side, after what was put before it."""
        if not self._is_over:
            self._error, self._is_over = error, True
            self.touch()

    def raise_if_stalled(self) -> None:
        """Raises `READER_STALLED` for a queue that has been full too long."""
        since = self._full_since
        if since is not None and time.monotonic() - since > LONGEST_WAIT_S:
            raise failure(
                Code.READER_STALLED,
                f"{self._unread:,} characters of the answer were not read in {LONGEST_WAIT_S:.0f} s",
            )

    # the reader's side

    async def batches(self) -> AsyncGenerator[list[T]]:
        """What came since the last time, again and again; [] when something was only counted. Ends with the work, or
        raises what it raised."""
        is_over = False
        while not is_over:
            await self._event.wait()
            self._event.clear()
            is_over = self._is_over  # asked before the items are taken, so that the last of them are not left behind
            yield self.take()
        self.raise_error()

    def raise_error(self) -> None:
        """Raises the error that the work ended with, if there was one."""
        if self._error is not None:
            raise self._error

    def take(self) -> list[T]:
        """What came since the last time."""
        with self._lock:
            items, self._items = self._items, []
            self._unread = 0
            was_full, self._full_since = self._full_since is not None, None
        if was_full:
            self.on_room()
        return items

    def go_past(self, send: Callable[[T], bool]) -> None:
        """From now on what is put goes to `send`, on the owner's thread, and not to the reader, as long as `send` says
        that it took it. Does nothing while something waits for the reader: that comes first."""
        with self._lock:
            if not self._items and not self._is_over:
                self._send = send

    def stay(self) -> None:
        """What is put from now on waits for the reader again."""
        with self._lock:
            self._send = None

    def _wake(self) -> None:
        self._is_waking = False
        self._event.set()
