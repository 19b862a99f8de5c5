"""Callers of one model share one transfer; whoever leaves does not disturb the others."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cartdeck_models.flight import Flights
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError, Code, failure

LIMIT_S = 20


@dataclass
class Work:
    """A transfer in the test's hands: it goes on one step for each `go`, and sees when nobody wants it."""

    steps: int = 3
    starts: int = 0
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __call__(self, task: Task) -> str:
        self.starts += 1
        for step in range(self.steps):
            task.report(Advance(step / self.steps, f"step {step}", "download", step, self.steps))
            while not self.go.acquire(timeout=0.02):
                if task.is_cancelled():
                    self.stopped.set()
                    task.raise_if_cancelled("download")
        if self.error is not None:
            raise self.error
        return "the file"


@dataclass
class Caller:
    flights: Flights[str]
    work: Callable[[Task], str]
    told: list[Advance] = field(default_factory=list[Advance])
    cancel: threading.Event = field(default_factory=threading.Event)
    heard: threading.Event = field(default_factory=threading.Event)
    result: str | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.flights.run("key", self.work, Task(self._report, self.cancel.is_set))
        except BaseException as error:
            self.error = error

    def _report(self, advance: Advance) -> None:
        self.told.append(advance)
        self.heard.set()

    def join(self) -> "Caller":
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        return self


def assert_monotone(told: list[Advance]) -> None:
    fractions = [advance.fraction for advance in told if advance.fraction is not None]
    assert fractions == sorted(fractions)
    for phase in {advance.phase for advance in told}:
        counts = [advance.work for advance in told if advance.phase == phase and advance.work is not None]
        assert counts == sorted(counts)


def test_eight_callers_share_one_transfer() -> None:
    work, flights = Work(), Flights[str]()
    callers = [Caller(flights, work) for _ in range(8)]
    assert all(caller.heard.wait(LIMIT_S) for caller in callers)
    work.go.release(3)

    assert [caller.join().result for caller in callers] == ["the file"] * 8
    assert work.starts == 1
    for caller in callers:
        assert_monotone(caller.told)


def test_a_caller_that_cancels_leaves_the_others_transfer_running() -> None:
    work, flights = Work(), Flights[str]()
    first, second = Caller(flights, work), Caller(flights, work)
    assert first.heard.wait(LIMIT_S)
    assert second.heard.wait(LIMIT_S)

    first.cancel.set()
    first.join()
    assert isinstance(first.error, CartdeckError)
    assert first.error.code is Code.CANCELLED
    assert not work.stopped.is_set()

    work.go.release(3)
    assert second.join().result == "the file"


def test_the_last_one_out_stops_the_transfer() -> None:
    work, flights = Work(), Flights[str]()
    callers = [Caller(flights, work) for _ in range(2)]
    assert all(caller.heard.wait(LIMIT_S) for caller in callers)
    for caller in callers:
        caller.cancel.set()
        caller.join()

    assert work.stopped.wait(LIMIT_S)


def test_a_caller_that_comes_while_an_unwanted_transfer_ends_gets_its_own() -> None:
    leaving, release = threading.Event(), threading.Event()

    def slow_to_stop(task: Task) -> str:
        task.report(Advance(0, "", "download"))
        while not task.is_cancelled():
            leaving.wait(0.01)
        leaving.set()
        release.wait(LIMIT_S)
        raise failure(Code.CANCELLED, "stopped")

    flights = Flights[str]()
    first = Caller(flights, slow_to_stop)
    assert first.heard.wait(LIMIT_S)
    first.cancel.set()
    first.join()
    assert leaving.wait(LIMIT_S)

    assert Caller(flights, lambda _: "anew").join().result == "anew"
    release.set()
    flights.stop(LIMIT_S)


def test_one_error_reaches_every_caller_as_its_own() -> None:
    work, flights = Work(error=failure(Code.HASH_MISMATCH, "bad", details={"got": "x"})), Flights[str]()
    callers = [Caller(flights, work) for _ in range(3)]
    assert all(caller.heard.wait(LIMIT_S) for caller in callers)
    work.go.release(3)
    errors = [caller.join().error for caller in callers]

    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, CartdeckError)
        assert (error.code, error.details) == (Code.HASH_MISMATCH, {"got": "x"})


def test_a_mistake_in_the_work_is_not_hidden() -> None:
    error = Caller(Flights[str](), Work(steps=0, error=KeyError("oops"))).join().error

    assert isinstance(error, KeyError)


def test_a_transfer_that_starts_anew_never_shows_as_falling_progress() -> None:
    def work(task: Task) -> str:
        for count in (10, 60, 0, 20, 100):
            task.report(Advance(count / 200, "", "download", count, 100))
        task.report(Advance(None, "", "waiting_for_lock"))
        task.report(Advance(0.95, "", "unpack", 1, 10))
        return "x"

    caller = Caller(Flights[str](), work).join()

    assert_monotone(caller.told)
    assert caller.told[-1].fraction == 0.95


def test_a_caller_that_joins_late_starts_where_the_transfer_is(
    eventually: Callable[[Callable[[], bool], float], bool],
) -> None:
    work, flights = Work(), Flights[str]()
    first = Caller(flights, work)
    work.go.release(2)
    assert eventually(lambda: bool(first.told) and first.told[-1].work == 2, LIMIT_S)
    late = Caller(flights, work)
    assert late.heard.wait(LIMIT_S)
    work.go.release(1)

    assert late.join().result == first.join().result == "the file"
    assert late.told[0].work == 2
    assert work.starts == 1


def test_stop_ends_all_transfers_within_its_limit() -> None:
    work, flights = Work(), Flights[str]()
    caller = Caller(flights, work)
    assert caller.heard.wait(LIMIT_S)

    flights.stop(LIMIT_S)

    assert work.stopped.is_set()
    assert isinstance(caller.join().error, CartdeckError)


def test_a_phase_that_changes_hands_back_to_its_caller() -> None:
    boarded, unpack = threading.Event(), threading.Event()

    def work(task: Task) -> str:
        boarded.wait(LIMIT_S)
        task.report(Advance(0.1, "a", "download", 1, 2))
        unpack.wait(LIMIT_S)
        task.report(Advance(0.9, "b", "unpack", 1, 2))
        return "x"

    phases = list[str]()
    with Flights[str]().board("key", work) as seat:
        boarded.set()
        while seat.follow(lambda _: None, lambda: False) is None:
            phases.append(seat.last.phase)
            unpack.set()

    assert phases == ["download", "unpack"]


def test_a_cancel_is_seen_while_nothing_moves() -> None:
    work = Work()
    caller = Caller(Flights[str](), work)
    assert caller.heard.wait(LIMIT_S)
    caller.cancel.set()

    assert isinstance(caller.join().error, CartdeckError)
    assert work.stopped.wait(LIMIT_S)


def test_short_work_is_done_in_the_thread_of_the_first_caller() -> None:
    flights: Flights[str] = Flights()
    found = flights.run_here("a", lambda _: threading.current_thread().name, Task(lambda _: None, lambda: False))

    assert found == threading.current_thread().name


def test_who_shares_short_work_gets_its_result_and_its_advances(eventually) -> None:
    flights: Flights[int] = Flights()
    begun, goes_on = threading.Event(), threading.Event()
    runs: list[int] = []
    told: list[Advance] = []

    def work(task: Task) -> int:
        runs.append(1)
        begun.set()
        assert goes_on.wait(30)
        task.report(Advance(0.5, "half", "download", 5, 10))
        return 7

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.run_here, "a", work, Task(lambda _: None, lambda: False))
        assert begun.wait(30)
        second = pool.submit(flights.run_here, "a", work, Task(told.append, lambda: False))
        assert eventually(lambda: flights._flights["a"].passengers == 2, 30)
        goes_on.set()

        assert (first.result(30), second.result(30), len(runs)) == (7, 7, 1)


def test_who_shares_short_work_begins_anew_when_its_first_caller_cancels(eventually) -> None:
    flights: Flights[int] = Flights()
    begun, is_cancelled = threading.Event(), threading.Event()
    runs: list[int] = []

    def work(task: Task) -> int:
        runs.append(1)
        begun.set()
        while len(runs) == 1:
            task.raise_if_cancelled("download")
            threading.Event().wait(0.01)
        return 7

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.run_here, "a", work, Task(lambda _: None, is_cancelled.is_set))
        assert begun.wait(30)
        second = pool.submit(flights.run_here, "a", work, Task(lambda _: None, lambda: False))
        assert eventually(lambda: flights._flights["a"].passengers == 2, 30)
        is_cancelled.set()

        assert second.result(30) == 7
        error = first.exception(30)
    assert isinstance(error, CartdeckError)
    assert error.code is Code.CANCELLED
