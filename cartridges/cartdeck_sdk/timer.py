"""Owns the heartbeat: a thread that runs no handlers, so that a held loop does not look like a dead process.

It does not know requests; it is given numbers to report and an outbox to write to.
"""

import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from cartdeck_protocol.wire import encode_heartbeat
from cartdeck_sdk.outbox import Outbox

_HELD_LOOP_S: Final = 0.02
"""How often, while the outbox holds bytes, the thread looks whether the loop is too busy to write them."""

Counts = Callable[[], tuple[int, int, int]]


class HeartbeatTimer:
    """Beats every `heartbeat_s` seconds with `counts()`: open requests, stragglers, strays."""

    def __init__(self, outbox: Outbox, counts: Counts, *, heartbeat_s: float) -> None:
        self._outbox = outbox
        self._counts = counts
        self._heartbeat_s = heartbeat_s
        self._stop = Event()
        self._thread = Thread(target=self._run, name="cartdeck-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        waited = self._heartbeat_s
        while True:
            if waited >= self._heartbeat_s:
                waited = 0.0
                open_requests, stragglers, strays = self._counts()
                beat = encode_heartbeat(
                    rss_bytes=resident_bytes(), open_requests=open_requests, stragglers=stragglers, strays=strays
                )
                self._outbox.put((beat,))
            self._outbox.flush()
            step = _HELD_LOOP_S if self._outbox.waiting_bytes else self._heartbeat_s - waited
            if self._stop.wait(step):
                return
            waited += step


def resident_bytes() -> int:
    """The memory of this process that lies in RAM; 0 where the system does not say (not Linux)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123  # read every few seconds: plain open
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0
