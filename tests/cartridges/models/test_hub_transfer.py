"""Bytes on their way: cut, slow, stalled, wrong, in ranges or not; what arrives is right or is told not to be."""

import random
import threading
from typing import Any

import pytest

from cartdeck_protocol.errors import Code

MB = 1_000_000
DATA = random.Random(7).randbytes(5 * MB)
SPEC = "hf:owner/name:m.gguf"


@pytest.fixture
def file(hub) -> Any:
    hub.add({"m.gguf": DATA})
    return hub.file("m.gguf")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of 1 MiB instead of 32, so that a small file has several."""
    monkeypatch.setattr("cartdeck_models.hub.transfer.STEP_BYTES", 1024 * 1024)


def ranges(hub) -> list[str | None]:
    return [request.range for request in hub.requests if request.origin == "storage"]


def works(desk) -> list[int]:
    return [advance.work for advance in desk.told if advance.work is not None]


def test_a_file_arrives_whole_and_says_what_it_is(desk, hub, file) -> None:
    found = desk.obtain(SPEC)

    assert found.path.read_bytes() == DATA
    assert found.path.name == "m.gguf"
    assert (found.source, found.revision) == ("hub", hub.repositories["owner/name"].branches["main"])
    assert (found.sha256, found.files[0].sha256, found.files[0].size_bytes) == (file.sha256, file.sha256, len(DATA))
    assert found.resumed_bytes == 0
    assert desk.leftovers() == []


def test_progress_counts_bytes_of_the_total_and_says_how_fast(desk, hub, file) -> None:
    file.rate_bytes_s = 4 * MB
    desk.obtain(SPEC)
    downloading = [advance for advance in desk.told if advance.phase == "download"]

    assert works(desk) == sorted(works(desk))
    assert {advance.total for advance in downloading} == {len(DATA)}
    assert (downloading[-1].work, downloading[-1].fraction) == (len(DATA), 1.0)
    assert len(downloading) > 4
    assert any("MB/s" in advance.message and "s left" in advance.message for advance in downloading)
    assert all("owner/name" in advance.message for advance in downloading)


def test_three_cuts_at_40_percent_cost_no_byte_twice(desk, hub, file) -> None:
    file.cuts_at = [2 * MB, 3 * MB, 4 * MB]

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert ranges(hub) == [None, *(f"bytes={at * MB}-{len(DATA) - 1}" for at in (2, 3, 4))]
    assert hub.sent["m.gguf"] == len(DATA)


def test_a_link_that_carries_1_mb_per_connection_brings_it_all(desk, hub, file) -> None:
    file.bytes_per_connection = MB

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert hub.sent["m.gguf"] == len(DATA)
    assert works(desk) == sorted(works(desk))


def test_what_came_before_an_interruption_is_kept_and_used_again(desk, hub, file, monkeypatch) -> None:
    monkeypatch.setattr("cartdeck_models.hub.patience.FIRST_WAIT_S", 0.02)
    file.dead_from = 2 * MB
    error = desk.refused(SPEC)
    assert error.code is Code.DOWNLOAD_INTERRUPTED
    assert (error.details["got"], error.details["expected"]) == (2 * MB, len(DATA))
    assert not list(desk.root.rglob("m.gguf"))

    file.dead_from = None
    hub.requests.clear()
    desk.told.clear()
    found = desk.obtain(SPEC)

    assert found.path.read_bytes() == DATA
    assert found.resumed_bytes == 2 * MB
    assert ranges(hub) == [f"bytes={2 * MB}-{len(DATA) - 1}"]
    assert hub.sent["m.gguf"] == len(DATA)
    assert works(desk) == sorted(works(desk))
    assert desk.leftovers() == []


def test_a_large_file_comes_in_several_ranges_at_once(desk, hub, file, small_steps: None) -> None:
    file.rate_bytes_s = 2 * MB

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    step = 1024 * 1024
    steps = [f"bytes={at}-{min(at + step, len(DATA)) - 1}" for at in range(0, len(DATA), step)]
    assert sorted(ranges(hub), key=lambda text: int(text[6:].partition("-")[0])) == steps
    assert hub.most_transfers > 1
    assert hub.sent["m.gguf"] == len(DATA)


def test_ranges_that_are_cut_go_on_each_where_it_was(desk, hub, file, small_steps: None) -> None:
    file.bytes_per_connection = 300_000

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert hub.sent["m.gguf"] == len(DATA)


def test_a_server_without_ranges_sends_the_whole_and_it_is_right(desk, hub, file, small_steps: None) -> None:
    file.ignores_range = True

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert works(desk) == sorted(works(desk))


def test_a_server_without_ranges_that_is_cut_begins_anew_and_progress_does_not_fall(desk, hub, file) -> None:
    file.ignores_range, file.cuts_at, file.rate_bytes_s = True, [2 * MB, 3 * MB], 20 * MB

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert works(desk) == sorted(works(desk))
    assert hub.sent["m.gguf"] > len(DATA)


def test_wrong_bytes_of_the_right_size_are_fetched_once_more(desk, hub, file) -> None:
    file.wrong_answers = 1

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert len(ranges(hub)) == 2
    assert desk.leftovers() == []
    assert not list(desk.root.rglob("bad-*"))


def test_wrong_bytes_twice_are_told_kept_aside_and_never_in_place(desk, hub, file) -> None:
    file.wrong_answers = 2
    error = desk.refused(SPEC)

    assert error.code is Code.HASH_MISMATCH
    assert error.details["expected"] == file.sha256
    assert error.details["got"] != file.sha256
    kept = list(desk.root.rglob("bad-*"))
    assert [str(path) for path in kept] == [error.details["kept"]]
    assert not list(desk.root.rglob("m.gguf"))
    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert not list(desk.root.rglob("bad-*"))


def test_a_small_file_is_checked_by_its_git_name(desk, hub) -> None:
    hub.add({"m.gguf": b"0123456789"})
    hub.file("m.gguf").wrong_answers = 1

    assert desk.obtain(SPEC).path.read_bytes() == b"0123456789"
    hub.add({"m.gguf": b"abcdefghij"})
    hub.file("m.gguf").wrong_answers = 2
    assert desk.refused(SPEC).code is Code.HASH_MISMATCH


def test_a_server_that_stalls_is_said_and_left_for_a_new_connection(desk, hub, file) -> None:
    desk.set(quiet_limit_s=0.5)
    file.stalls_at, file.stalls = 2 * MB, 1

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert "stalled" in desk.phases()
    assert works(desk) == sorted(works(desk))


def test_a_server_that_stalls_for_good_ends_typed(desk, hub, file) -> None:
    desk.set(quiet_limit_s=0.5)
    file.stalls_at = 0
    error = desk.refused(SPEC)

    assert error.code is Code.DOWNLOAD_STALLED
    assert error.details["expected"] == len(DATA)
    assert "stalled" in desk.phases()


def test_a_cancel_is_heard_while_the_server_is_silent(desk, hub, file, eventually) -> None:
    desk.set(quiet_limit_s=60.0)
    file.stalls_at = MB
    threading.Thread(target=lambda: hub.started.wait(30) and desk.is_cancelled.set()).start()
    error = desk.refused(SPEC)

    assert error.code is Code.CANCELLED
    assert hub.wait_idle(30)


def test_an_answer_without_a_length_is_taken_to_its_end(desk, hub, file) -> None:
    file.has_length = False

    assert desk.obtain(SPEC).path.read_bytes() == DATA


def test_a_listing_without_sizes_gives_a_file_without_a_total(desk, hub, file) -> None:
    file.lists_size = False
    file.rate_bytes_s = 20 * MB
    found = desk.obtain(SPEC)

    assert found.path.read_bytes() == DATA
    assert {advance.total for advance in desk.told} == {None}
    assert {advance.fraction for advance in desk.told} <= {None, 0.0}


def test_headers_that_are_missing_on_the_way_are_not_needed(desk, hub, file) -> None:
    file.leaves_out = frozenset({"x-repo-commit", "x-linked-etag", "x-linked-size", "etag", "accept-ranges"})

    assert desk.obtain(SPEC).path.read_bytes() == DATA


def test_a_range_without_its_place_is_not_guessed(desk, hub, file, small_steps: None) -> None:
    file.leaves_out = frozenset({"content-range"})
    error = desk.refused(SPEC)

    assert error.code is Code.ENDPOINT_UNREACHABLE
    assert "which bytes" in error.message


def test_an_address_of_the_storage_that_expired_is_asked_for_again(desk, hub, file, small_steps: None) -> None:
    desk.set(connections=1)
    hub.expire_after = 2

    assert desk.obtain(SPEC).path.read_bytes() == DATA
    assert len(hub.asked_for("/resolve/")) == 3
