"""Owns one transfer per model inside the process: callers of the same key share it, and the last one out stops it.

It does not know what is transferred. A flight is a thread that works; a seat is one caller's place in it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from cartdeck_models.task import Advance, Task, cancelled
from cartdeck_protocol.errors import CartdeckError, Code, from_wire
from cartdeck_protocol.progress import RunningMaximum

T = TypeVar("T")
Work = Callable[[Task], T]
OnAdvance = Callable[[Advance], None]

POLL_S = 0.1
"""How often a waiting caller looks whether it was cancelled."""


class _Flight(Generic[T]):
    """One transfer. What it reports never falls: the fraction over all, the work within a phase."""

    def __init__(self, work: Work[T], on_end: Callable[["_Flight[T]"], None]) -> None:
        self._work = work
        self._on_end = on_end
        self._fraction = RunningMaximum()
        self._unwanted = threading.Event()
        self.changed = threading.Condition()
        self.passengers = 0
        self.serial = 0
        self.advance = Advance(None, "", "")
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    @property
    def is_unwanted(self) -> bool:
        return self._unwanted.is_set()

    def stop(self) -> None:
        self._unwanted.set()

    def take_off(self) -> None:
        """Work in a thread of its own."""
        threading.Thread(target=self.fly, args=(Task(_ignore, _never),), name="transfer", daemon=True).start()

    def fly(self, pilot: Task) -> None:
        """Work in this thread, for the caller whose task is `pilot` and for all others."""

        def report(advance: Advance) -> None:
            self._report(advance)
            pilot.report(self.advance)

        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._work(Task(report, lambda: self.is_unwanted or pilot.is_cancelled()))
        except BaseException as found:
            error = found  # carried to every caller, whatever it is
        self._on_end(self)
        with self.changed:
            self.result, self.error, self.is_done = result, error, True
            self.changed.notify_all()

    def wait(self, limit_s: float) -> bool:
        """Whether it ended within `limit_s` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self.is_done, limit_s)

    def _report(self, advance: Advance) -> None:
        last = self.advance
        work = advance.work
        if advance.phase == last.phase and last.work is not None:
            work = max(work or 0, last.work)
        rising = replace(advance, fraction=self._fraction.advance(advance.fraction), work=work)
        with self.changed:
            self.advance = rising
            self.serial += 1
            self.changed.notify_all()


class Seat(Generic[T]):
    """One caller's place in a flight, from boarding until it leaves; a context manager."""

    def __init__(self, flight: _Flight[T], leave: Callable[[], None]) -> None:
        self._flight = flight
        self._leave = leave
        self._seen = 0
        self.last = flight.advance

    def __enter__(self) -> "Seat[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def follow(self, on_advance: OnAdvance, is_cancelled: Callable[[], bool]) -> T | None:
        """Pass on the flight's advances until its phase changes, then return None; its result at the end.

        Raises the flight's error, and CANCELLED at once when this caller is cancelled: the flight goes on for others.
        """
        phase = self.last.phase
        while True:
            advance = self._next(is_cancelled)
            if advance is None:
                return self.outcome()
            self.last = advance
            if advance.phase != phase:
                return None
            on_advance(advance)

    def _next(self, is_cancelled: Callable[[], bool]) -> Advance | None:
        """The next advance that this seat has not seen, the newest only; None once the flight is over."""
        flight = self._flight
        with flight.changed:
            while True:
                if is_cancelled():
                    raise cancelled(self.last.phase)
                if flight.serial != self._seen:
                    self._seen = flight.serial
                    return flight.advance
                if flight.is_done:
                    return None
                flight.changed.wait(POLL_S)

    def outcome(self) -> T:
        """The result of a flight that is over. Raises its error."""
        error = self._flight.error
        if isinstance(error, CartdeckError):
            raise from_wire(error.to_wire()) from error
        if error is not None:
            raise error
        result = self._flight.result
        assert result is not None
        return result


class Flights(Generic[T]):
    """All transfers of this process, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight[T]] = {}
        self._all: set[_Flight[T]] = set()
        self._is_stopped = False

    def board(self, key: str, work: Work[T]) -> Seat[T]:
        """A seat in the flight of `key`; `work` starts one where none is under way."""
        with self._lock:
            flight, is_new = self._joined(key, work)
        if is_new:
            flight.take_off()
        return Seat(flight, lambda: self._leave(flight))

    def run(self, key: str, work: Work[T], task: Task) -> T:
        """Board and stay to the end; every phase's advances go to `task.report`."""
        with self.board(key, work) as seat:
            return _followed(seat, task)

    def run_here(self, key: str, work: Work[T], task: Task) -> T:
        """As `run`, for short work: done in this thread, where no flight is under way, without the cost of another.

        A caller that cancels ends work that it does itself; whoever shares it begins anew.
        """
        while True:
            with self._lock:
                flight, is_new = self._joined(key, work)
            with Seat(flight, lambda left=flight: self._leave(left)) as seat:
                if is_new:
                    flight.fly(task)
                    return seat.outcome()
                try:
                    return _followed(seat, task)
                except CartdeckError as error:
                    if error.code is not Code.CANCELLED or task.is_cancelled() or self._is_stopped:
                        raise

    def stop(self, limit_s: float) -> bool:
        """Stop all flights and wait for their ends, `limit_s` seconds at most; whether all have ended."""
        end_s = time.monotonic() + limit_s
        with self._lock:
            self._is_stopped = True
            flights = list(self._all)
        for flight in flights:
            flight.stop()
        return all(flight.wait(max(0.0, end_s - time.monotonic())) for flight in flights)

    def _joined(self, key: str, work: Work[T]) -> tuple[_Flight[T], bool]:
        """The flight of `key`, with one passenger more, and whether it is a new one that must be started."""
        flight = self._flights.get(key)
        if flight is not None and not flight.is_unwanted:
            flight.passengers += 1
            return flight, False
        flight = _Flight(work, lambda ended: self._remove(key, ended))
        self._flights[key] = flight
        self._all.add(flight)
        flight.passengers = 1
        return flight, True

    def _leave(self, flight: _Flight[T]) -> None:
        with self._lock:
            flight.passengers -= 1
            if flight.passengers == 0:
                flight.stop()

    def _remove(self, key: str, flight: _Flight[T]) -> None:
        with self._lock:
            self._all.discard(flight)
            if self._flights.get(key) is flight:
                del self._flights[key]


def _followed(seat: Seat[T], task: Task) -> T:
    while True:
        result = seat.follow(task.report, task.is_cancelled)
        if result is not None:
            return result
        task.report(seat.last)


def _ignore(_: Advance) -> None: ...


def _never() -> bool:
    return False
