"""Owns one transfer at a time per model across processes: the lock, who holds it, and a wait that has a limit.

It does not know what is done under the lock.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from cartdeck_models.task import Advance, Task, size_of_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

PHASE = "waiting_for_lock"
POLL_S = 0.1
TELL_EVERY_S = 0.5
REPORT_EVERY_S = 1.0


@dataclass(slots=True)
class Holding:
    """What the holder of a lock tells those who wait for it: that it advances."""

    path: Path
    _told_s: float = field(default=float("-inf"))

    def tell(self, work: int, total: int | None) -> None:
        """Say how many of `total` bytes are done; at most twice a second reaches the disk."""
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "work": work, "total": total}
        staged = self.path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            staged.write_text(json.dumps(holder), encoding="utf-8")
            staged.replace(self.path)


def telling(task: Task, holding: Holding) -> Task:
    """`task`, whose advances also reach the processes that wait for the lock."""

    def report(advance: Advance) -> None:
        holding.tell(advance.work or 0, advance.total)
        task.report(advance)

    return Task(report, task.is_cancelled)


@contextmanager
def held(path: Path, task: Task, *, limit_s: float, trace: Callable[[], object] = lambda: None) -> Generator[Holding]:
    """Hold the lock file `path`.

    While another holds it, the wait is reported in phase `waiting_for_lock`. Raises CANCELLED, and LOCK_TIMEOUT with
    the holder and the lock file once the holder has not advanced for `limit_s` seconds. A holder that is another
    program tells nothing; it advances while `trace` gives something new.
    """
    lock = FileLock(path)
    holder_path = path.with_suffix(".json")
    _acquire(lock, task, lambda: (_read_holder(holder_path), trace()), limit_s)
    try:
        holding = Holding(holder_path)
        holding.tell(0, None)
        yield holding
    finally:
        with contextlib.suppress(OSError):
            holder_path.unlink()
        lock.release()


@contextmanager
def held_at_once(path: Path, *, what: str) -> Generator[None]:
    """Hold the lock file `path` without waiting. Raises LOCK_TIMEOUT with the holder while another fetches `what`."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _read_holder(path.with_suffix(".json"))
        raise failure(
            Code.LOCK_TIMEOUT,
            f"{_named(holder).capitalize()} is fetching {what} (lock {path}). "
            "Wait until it is done, or end that process.",
            details={"lock_file": str(path), "holder": holder},
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, task: Task, look: Callable[[], tuple[dict[str, Any], object]], limit_s: float) -> None:
    seen: tuple[dict[str, Any], object] = ({}, None)
    moved_s, reported_s = time.monotonic(), float("-inf")
    while True:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            pass
        else:
            return
        task.raise_if_cancelled(PHASE)
        now_s = time.monotonic()
        found = look()
        if found != seen:
            seen, moved_s = found, now_s
        if now_s - moved_s > limit_s:
            raise _lock_timeout(lock, seen[0], limit_s)
        if now_s - reported_s >= REPORT_EVERY_S:
            reported_s = now_s
            task.report(_waiting(seen[0]))
        time.sleep(POLL_S)


def _read_holder(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if "pid" in holder else "another process"


def _waiting(holder: dict[str, Any]) -> Advance:
    work, total = holder.get("work"), holder.get("total")
    message = f"Waiting for {_named(holder)}, which fetches the same model"
    if work:
        message += f": {size_of_text(work, total)}"
    return Advance(None, message, PHASE, work or 0, total)


def _lock_timeout(lock: FileLock, holder: dict[str, Any], limit_s: float) -> CartdeckError:
    return failure(
        Code.LOCK_TIMEOUT,
        f"{_named(holder).capitalize()} holds the lock {lock.lock_file} and has not advanced for {limit_s:g} s. "
        "End that process, or try again later.",
        phase=PHASE,
        details={"lock_file": lock.lock_file, "holder": holder, "limit_s": limit_s},
    )
