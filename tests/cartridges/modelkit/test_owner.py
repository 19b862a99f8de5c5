"""What is asked of a model runs in its order on one thread, and the thread goes on with its work in between."""

import threading
from collections.abc import Callable

import pytest

from cartdeck_modelkit.owner import Owner

LIMIT_S = 10.0


def test_functions_run_one_after_another_on_one_thread() -> None:
    owner, threads, order = Owner("test"), set[int](), list[int]()

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            threads.add(threading.get_ident())
            order.append(number)

        return run

    for outcome in [owner.start(work(number)) for number in range(200)]:
        outcome.result(LIMIT_S)
    assert order == list(range(200))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_is_raised_where_it_was_asked_for_and_the_thread_goes_on() -> None:
    owner = Owner("test")

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        owner.call(fail)
    assert owner.call(lambda: 7) == 7


def test_steps_of_work_go_on_while_nothing_is_asked_and_make_room_for_what_is() -> None:
    owner, steps, answers = Owner("test"), list[int](), list[int]()
    enough = threading.Event()

    def work() -> float | None:
        steps.append(len(answers))
        if len(steps) > 5000:
            enough.set()
            return None
        return 0.0

    owner.go_on_with(work)
    for number in range(50):
        answers.append(owner.call(lambda number=number: number))
    assert enough.wait(LIMIT_S)
    assert answers == list(range(50))
    assert steps[0] <= 1  # the first that was asked for may come before the first step


def test_work_that_waits_is_done_again_when_it_is_woken_or_its_time_has_come() -> None:
    owner, again = Owner("test"), threading.Semaphore(0)
    pauses = iter([None, None, 0.01, None])

    def work() -> float | None:
        again.release()
        return next(pauses)

    owner.go_on_with(work)
    assert again.acquire(timeout=LIMIT_S)
    assert not again.acquire(timeout=0.05)
    owner.wake()
    assert again.acquire(timeout=LIMIT_S)
    owner.wake()
    assert again.acquire(timeout=LIMIT_S)  # woken
    assert again.acquire(timeout=LIMIT_S)  # after its pause
    assert not again.acquire(timeout=0.05)
