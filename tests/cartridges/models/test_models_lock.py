"""One transfer at a time per model across processes, with a limit to the wait."""

import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from cartdeck_models.lock import held
from cartdeck_models.task import Advance, Task
from cartdeck_protocol.errors import CartdeckError, Code


def quiet() -> Task:
    return Task(lambda _: None, lambda: False)


def test_the_holder_and_the_lock_file_are_named_when_the_wait_is_too_long(tmp_path: Path) -> None:
    import os

    path = tmp_path / "x.lock"
    with held(path, quiet(), limit_s=1), pytest.raises(CartdeckError) as caught, held(path, quiet(), limit_s=0.3):
        pass

    assert caught.value.code is Code.LOCK_TIMEOUT
    assert str(path) in caught.value.message
    assert f"process {os.getpid()}" in caught.value.message.lower()


def test_the_wait_is_told_as_progress_and_ends_when_the_lock_is_free(tmp_path: Path) -> None:
    path, told, got = tmp_path / "x.lock", list[Advance](), threading.Event()
    waiting = threading.Event()

    def report(advance: Advance) -> None:
        told.append(advance)
        waiting.set()

    def wait() -> None:
        with held(path, Task(report, lambda: False), limit_s=30):
            got.set()

    with held(path, quiet(), limit_s=1) as holding:
        holding.tell(0, 1)
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(30)
        assert not got.is_set()
    assert got.wait(30)
    thread.join(30)

    assert told[0].phase == "waiting_for_lock"
    assert told[0].fraction is None
    assert "Waiting for process" in told[0].message


def test_a_holder_that_advances_is_waited_for_beyond_the_limit(tmp_path: Path) -> None:
    path, got = tmp_path / "x.lock", threading.Event()

    def wait() -> None:
        with held(path, quiet(), limit_s=3.0):
            got.set()

    with held(path, quiet(), limit_s=1) as holding:
        thread = threading.Thread(target=wait)
        thread.start()
        end_s = time.monotonic() + 4.5
        work = 0
        while time.monotonic() < end_s:
            work += 1
            holding.tell(work, 1000)
            time.sleep(0.05)
    assert got.wait(30)
    thread.join(30)


def test_a_cancel_ends_the_wait(tmp_path: Path) -> None:
    path, cancel = tmp_path / "x.lock", threading.Event()
    task = Task(lambda _: cancel.set(), cancel.is_set)

    with held(path, quiet(), limit_s=1), pytest.raises(CartdeckError) as caught, held(path, task, limit_s=30):
        pass

    assert caught.value.code is Code.CANCELLED


def test_nothing_of_the_holder_is_left(tmp_path: Path) -> None:
    with held(tmp_path / "x.lock", quiet(), limit_s=1):
        pass

    assert [path.name for path in tmp_path.iterdir()] in ([], ["x.lock"])


def test_a_holder_that_tells_nothing_is_waited_for_while_it_leaves_traces(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    foreign = FileLock(path)
    foreign.acquire()
    began_s, looks = time.monotonic(), 0

    def trace() -> int:
        nonlocal looks
        looks += 1
        if looks == 12:
            foreign.release()
        return looks

    with held(path, quiet(), limit_s=0.5, trace=trace):
        assert time.monotonic() - began_s > 1.0
    assert looks == 12
