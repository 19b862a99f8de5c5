"""Output that waits, of all calls: in memory as far as the budget goes, then in a file, then no more."""

import gc
import os
import resource
import threading
from pathlib import Path
from random import Random

import pytest

from cartdeck.calls.backlog import Backlog, Stored
from cartdeck_protocol.errors import CartdeckError, Code


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_what_fits_the_budget_is_handed_back_as_it_is() -> None:
    backlog = Backlog(100, 1000, payload_bytes=50)
    payload = bytes(50)
    assert backlog.put(payload) is payload
    assert (backlog.used_bytes, backlog.stored_bytes) == (50, 0)
    assert backlog.take(payload) is payload
    assert backlog.used_bytes == 0


def test_what_does_not_fit_waits_in_a_file_that_goes_with_the_last_of_it() -> None:
    gc.collect()
    before = descriptors()
    backlog = Backlog(10, 1000, payload_bytes=50)
    random = Random(1)
    waiting: list[tuple[bytes, bytes | Stored]] = []
    for _ in range(500):
        if len(waiting) == 20 or (waiting and random.random() < 0.5):
            payload, held = waiting.pop(random.randrange(len(waiting)))
            assert backlog.take(held) == payload
        else:
            payload = random.randbytes(random.randint(11, 50))
            waiting.append((payload, backlog.put(payload)))
        assert backlog.stored_bytes == 50 * len(waiting)
    for payload, held in waiting:
        assert backlog.take(held) == payload
    assert (backlog.used_bytes, backlog.stored_bytes, descriptors()) == (0, 0, before)


def test_a_payload_may_be_taken_part_by_part() -> None:
    backlog = Backlog(0, 1000, payload_bytes=50)
    stored = backlog.put(bytes(range(50)))
    assert isinstance(stored, Stored)
    assert [backlog.take_part(stored, size) for size in (20, 20)] == [bytes(range(20)), bytes(range(20, 40))]
    assert backlog.stored_bytes == 50
    assert backlog.take(stored) == bytes(range(40, 50))
    assert backlog.stored_bytes == 0


def test_beyond_the_file_the_call_it_came_for_is_at_its_end() -> None:
    backlog = Backlog(0, 100, payload_bytes=50)
    held = [backlog.put(bytes(50)) for _ in range(2)]
    with pytest.raises(CartdeckError, match="more came here") as caught:
        backlog.put(b"x")
    assert caught.value.code is Code.READER_STALLED
    assert backlog.take(held[0]) == bytes(50)
    backlog.put(b"x")


def test_a_folder_that_takes_no_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    backlog = Backlog(0, 100, payload_bytes=50)
    with pytest.raises(CartdeckError, match="gone") as caught:
        backlog.put(b"x")
    assert caught.value.code is Code.INSUFFICIENT_STORAGE
    assert backlog.stored_bytes == 0


def test_with_all_disks_full_it_is_the_disk_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)  # which folder can be used is found by writing there
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        backlog = Backlog(0, 100, payload_bytes=50)
        with pytest.raises(CartdeckError, match="No usable temporary directory") as caught:
            backlog.put(b"x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code is Code.INSUFFICIENT_STORAGE
    assert backlog.stored_bytes == 0


def test_a_part_that_cannot_be_read_ends_its_payload() -> None:
    backlog = Backlog(0, 200, payload_bytes=50)
    held = [backlog.put(bytes(50)) for _ in range(2)]
    os.ftruncate(backlog._file, 10)  # pyright: ignore[reportPrivateUsage]  # a disk that forgets
    assert isinstance(held[0], Stored)
    with pytest.raises(CartdeckError, match="20 bytes were expected, 10 found"):
        backlog.take_part(held[0], 20)
    assert backlog.stored_bytes == 50


def test_a_file_that_cannot_be_read_ends_one_call_and_loses_no_slot() -> None:
    backlog = Backlog(0, 200, payload_bytes=50)
    held = [backlog.put(bytes(50)) for _ in range(2)]
    os.ftruncate(backlog._file, 10)  # pyright: ignore[reportPrivateUsage]  # a disk that forgets
    with pytest.raises(CartdeckError, match="50 bytes were expected, 10 found"):
        backlog.take(held[0])
    assert backlog.stored_bytes == 50


def test_the_file_is_closed_with_its_backlog() -> None:
    gc.collect()
    before = descriptors()
    backlog = Backlog(0, 200, payload_bytes=50)
    backlog.put(bytes(50))
    assert descriptors() == before + 1
    del backlog
    gc.collect()
    assert descriptors() == before


def test_what_is_abandoned_in_another_thread_is_given_back() -> None:
    backlog = Backlog(100, 1000, payload_bytes=50)
    payload = bytes(50)
    backlog.put(payload)
    assert backlog.keep(40)
    stored = [held for _ in range(2) if isinstance(held := backlog.put(payload), Stored)]
    thread = threading.Thread(target=backlog.abandon, args=(50, 40, stored))
    thread.start()
    thread.join()
    assert backlog.put(payload) is payload
    assert (backlog.used_bytes, backlog.stored_bytes) == (50, 0)


def test_results_keep_half_of_the_budget_at_most() -> None:
    backlog = Backlog(100, 0, payload_bytes=50)
    assert backlog.keep(50)
    assert not backlog.keep(1)
    backlog.let_go(50)
    backlog.put(bytes(80))
    assert backlog.keep(20)
    assert not backlog.keep(1), "what waits has the room"
