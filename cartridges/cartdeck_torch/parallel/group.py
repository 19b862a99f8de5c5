"""Owns the ranks beside this one: started together, asked together, and ended together with the first that fails.

It does not know what they compute.
"""

import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.parallel.loopback import bring_up_loopback
from cartdeck_torch.parallel.process import RankProcess
from cartdeck_torch.parallel.work import PREPARE, RankWork

LOOK_S: Final = 0.1
LONGEST_START_S: Final = 120.0
"""Until every rank has imported its libraries, on a machine that has much else to do."""


class RankGroup:
    """The ranks 1 to `ranks` - 1, of which each begins to import its libraries at once. They are killed with the thread
    that makes this."""

    def __init__(self, ranks: int) -> None:
        self.on_failure: Callable[[], None] = lambda: None
        """Called once, by another thread, when the first of them is lost: it ends what the leader waits for."""
        self._changed = Condition()
        self._failure: CartdeckError | None = None
        self._is_closed = False
        self.store = _new_store()
        """A file that does not exist yet, at which the ranks meet."""
        self.processes: list[RankProcess] = []
        try:
            for rank in range(1, ranks):
                self.processes.append(RankProcess(rank, ranks, on_change=self._look))
        except OSError as error:
            self.close()
            message = f"rank {len(self.processes) + 1} cannot be started: {error}"
            raise failure(Code.START_FAILED, message, phase="load") from error
        self.ask(PREPARE)

    @property
    def is_whole(self) -> bool:
        """Whether every rank may still answer."""
        return self._failure is None and not self._is_closed

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def ask(self, cap: str, work: Callable[[int], RankWork] | None = None) -> None:
        """Asks every rank, `work(rank)` being its argument."""
        for process in self.processes:
            process.ask(cap, None if work is None else {"work": work(process.rank).to_bytes()})

    def wait(self, report: Callable[[float], None], *, limit_s: float | None = None) -> None:
        """Until every rank has answered; `report` is called with their mean progress and may raise to give up.

        Raises what a rank failed with, `TIMED_OUT` behind `limit_s`.
        """
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            with self._changed:
                self.check()
                if not any(process.is_busy for process in self.processes):
                    return
                self._changed.wait(LOOK_S)
            if end_s is not None and time.monotonic() > end_s:
                raise failure(Code.TIMED_OUT, f"the ranks have not answered in {limit_s:.0f} s", phase="load")
            report(self.progress)

    @property
    def progress(self) -> float:
        """The mean of all ranks' progress in what they were asked last."""
        parts = [process.progress if process.is_busy else 1.0 for process in self.processes]
        return sum(parts) / len(parts)

    def check(self) -> None:
        """Raises a copy of what the first of them failed with."""
        # one that ended before it was on the list was not seen by `_look`
        errors = (process.error for process in self.processes)
        found = self._failure or next((error for error in errors if error is not None), None)
        if found is not None:
            raise failure(found.code, found.message, argument=found.argument, phase=found.phase, details=found.details)

    def wait_for_failure(self, limit_s: float) -> None:
        """Raises what a rank failed with, once it is known; returns behind `limit_s` where none did."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, limit_s)
        self.check()

    def meet_anew(self) -> None:
        """For another model on the same ranks, which meet at another file."""
        self._forget_store()
        self.store = _new_store()

    def close(self) -> None:
        """Ends every rank."""
        self._is_closed = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.close()
        self._forget_store()

    def _forget_store(self) -> None:
        with suppress(OSError):
            self.store.unlink()

    def _look(self) -> None:
        """Called by the threads that read, whenever something changed."""
        with self._changed:
            errors = [process.error for process in self.processes if process.error is not None]
            is_first = bool(errors) and self._failure is None and not self._is_closed
            if is_first:
                self._failure = errors[0]
            self._changed.notify_all()
        if is_first:
            for process in self.processes:  # the others wait for it, and would until their time is up
                process.kill()
            self.on_failure()


def start_ranks(ranks: int) -> RankGroup:
    """Starts a group, with what it talks over. Raises `START_FAILED`, and `UNSUPPORTED` where it cannot talk."""
    bring_up_loopback()  # before the first rank: they share this process's network
    return RankGroup(ranks)


def _new_store() -> Path:
    return Path(tempfile.gettempdir()) / f"cartdeck-ranks-{secrets.token_hex(8)}"
