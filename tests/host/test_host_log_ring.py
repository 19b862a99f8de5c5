"""What is kept of a cartridge's stderr: bounded, in whole lines, with what was dropped counted."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cartdeck.sessions.log_ring import LogRing


def test_lines_come_back_whole_however_they_were_cut() -> None:
    ring = LogRing(ring_bytes=1000, line_bytes=100)
    for piece in (b"fir", b"st\nsec", b"ond\n\nla", b"st"):
        ring.feed(piece)
    assert ring.tail(10) == ["first", "second", "", "last"]
    assert ring.tail(1) == ["last"]
    assert ring.tail(0) == []
    ring.finish()
    assert ring.tail(2) == ["", "last"]


def test_a_long_line_is_split_and_a_line_without_end_is_bounded() -> None:
    ring = LogRing(ring_bytes=10_000, line_bytes=64)
    ring.feed(b"x" * 150 + b"\n")
    assert [len(line) for line in ring.tail(9)] == [64, 64, 22]
    endless = LogRing(ring_bytes=4096, line_bytes=64)
    endless.feed(b"y" * 1_048_576)
    assert sum(map(len, endless.tail(1000))) <= 4096 + 64
    assert endless.total_bytes == 1_048_576
    assert endless.dropped_bytes > 1_000_000


def test_the_oldest_are_dropped_and_counted() -> None:
    ring = LogRing(ring_bytes=64, line_bytes=64)
    for number in range(100):
        ring.feed(b"line %02d\n" % number)
    assert ring.tail(100)[-1] == "line 99"
    assert ring.tail(100)[0] != "line 00"
    assert ring.dropped_bytes + sum(len(line) + 1 for line in ring.tail(100)) == ring.total_bytes


def test_bytes_that_are_no_text_are_shown() -> None:
    ring = LogRing(ring_bytes=1000, line_bytes=100)
    ring.feed(b"caf\xc3\xa9 \xff\r\n")
    assert ring.tail(1) == ["café \\xff"]


def test_each_line_is_told_once() -> None:
    told: list[str] = []
    ring = LogRing(ring_bytes=1000, line_bytes=100, on_line=told.append)
    ring.feed(b"one\ntwo\nthr")
    assert told == ["one", "two"]
    ring.finish()
    assert told == ["one", "two", "thr"]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_any_split_of_the_same_bytes_keeps_the_same_lines(data: bytes, cuts: list[int]) -> None:
    whole, split = (LogRing(ring_bytes=256, line_bytes=16) for _ in range(2))
    whole.feed(data)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in pairwise(places):
        split.feed(data[start:end])
    assert split.tail(999) == whole.tail(999)
    assert (split.total_bytes, split.dropped_bytes) == (whole.total_bytes, whole.dropped_bytes)


def test_lines_behind_those_that_were_seen_are_given_once() -> None:
    ring = LogRing(ring_bytes=20, line_bytes=64)
    ring.feed(b"one\ntwo\nthr")
    assert (ring.lines_since(0), ring.total_lines) == (["one", "two"], 2)
    ring.feed(b"ee\n")
    assert ring.lines_since(2) == ["three"]
    ring.feed(b"four\nfive\nsix\n")
    assert ring.lines_since(0) == ["three", "four", "five", "six"]
    assert ring.lines_since(ring.total_lines) == []
