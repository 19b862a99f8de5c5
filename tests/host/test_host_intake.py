"""What waits for a caller: in order, bounded, whole characters and whole items; and what a result keeps."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck.calls.backlog import Backlog
from cartdeck.calls.intake import KEEP_ALL, Incoming, Intake
from cartdeck.calls.window import Reserve, Window
from cartdeck.events import Data, Log, Progress, Result
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_protocol.wire import InStream, OutStream, encode_item


class Outlet:
    """Counts the chunks granted."""

    def __init__(self) -> None:
        self.granted = 0

    def wake(self, stream: OutStream) -> None: ...

    def grant(self, stream: InStream, chunks: int) -> None:
        self.granted += chunks


def make(
    *,
    is_sequence: bool = False,
    is_text: bool = False,
    keep_bytes: int | None = KEEP_ALL,
    log_lines: int = 1000,
    backlog: Backlog | None = None,
) -> tuple[Intake, Incoming, Outlet]:
    outlet = Outlet()
    intake = Intake(
        backlog or Backlog(1 << 20, 1 << 20, payload_bytes=1024),
        keep_bytes=KEEP_ALL if keep_bytes is None else keep_bytes,
        is_sharing=keep_bytes is None,
        log_lines=log_lines,
        cartridge="echo",
    )
    stream = InStream(outlet, 2, 0, media="", name="", is_sequence=is_sequence, credit=4)
    window = Window(stream, Reserve(0, chunk_bytes=1024), credit=4, grown_credit=4)
    return intake, intake.start(stream, window, max_item=1 << 20, is_text=is_text), outlet


def drain(intake: Intake) -> list[object]:
    found: list[object] = []
    while intake:
        found += intake.take()
    return found


def result(intake: Intake) -> Result:
    return Result(intake.outputs, 1.0, {})


def progress(fraction: float) -> Progress:
    return Progress(fraction, "", None, None, None, "echo")


def test_credit_is_granted_as_the_caller_takes() -> None:
    intake, incoming, outlet = make()
    for _ in range(4):
        intake.add_chunk(incoming, b"x")
    assert (intake.waiting_chunks, outlet.granted) == (4, 0)
    intake.take()
    intake.take()
    assert (intake.waiting_chunks, outlet.granted) == (2, 2)


def test_of_waiting_progress_the_latest_is_kept() -> None:
    intake, incoming, _ = make()
    intake.add_progress(progress(0.1))
    intake.add_chunk(incoming, b"x")
    intake.add_progress(progress(0.3))
    assert drain(intake) == [progress(0.3), Data("", b"x")]
    intake.add_progress(progress(0.4))
    assert drain(intake) == [progress(0.4)]


def test_log_lines_that_are_not_taken_are_dropped_and_counted() -> None:
    intake, incoming, _ = make(log_lines=3)
    intake.add_chunk(incoming, b"x")
    for number in range(10):
        intake.add_log(Log("info", str(number), "echo"))
    found = drain(intake)
    assert found[0] == Data("", b"x")
    assert found[1] == Log("warning", "7 log lines were not taken in time and are lost", "echo")
    assert [one.message for one in found[2:] if isinstance(one, Log)] == ["7", "8", "9"]


def test_a_character_is_never_cut() -> None:
    intake, incoming, _ = make(is_text=True)
    data = "👍 né".encode()
    for cut in range(len(data)):
        intake.add_chunk(incoming, data[cut : cut + 1])
    intake.add_end(incoming)
    assert [one.text for one in drain(intake) if isinstance(one, Data)] == ["👍", " ", "n", "é"]
    assert result(intake).text == "👍 né"


def test_bytes_that_are_no_text_come_through_and_the_end_holds_nothing_back() -> None:
    intake, incoming, _ = make(is_text=True)
    intake.add_chunk(incoming, b"\xff\x80\x80")
    intake.add_chunk(incoming, b"ok\xe6\xad")
    intake.add_end(incoming)
    assert b"".join(one.value for one in drain(intake) if isinstance(one, Data)) == b"\xff\x80\x80ok\xe6\xad"
    with pytest.raises(CartdeckError) as caught:
        _ = result(intake).text
    assert caught.value.code is Code.INVALID_TEXT


@given(st.text(max_size=60), st.lists(st.integers(1, 7), min_size=1, max_size=80))
def test_any_split_of_a_text_gives_pieces_that_are_texts(text: str, sizes: list[int]) -> None:
    intake, incoming, _ = make(is_text=True)
    data, turn = text.encode("utf-8", "replace"), 0
    while data:
        size = sizes[turn % len(sizes)]
        intake.add_chunk(incoming, data[:size])
        data, turn = data[size:], turn + 1
    intake.add_end(incoming)
    pieces = [one.value.decode("utf-8") for one in drain(intake) if isinstance(one, Data)]
    assert "".join(pieces).encode("utf-8") == text.encode("utf-8", "replace")


def test_items_come_whole_however_they_are_chunked() -> None:
    intake, incoming, _ = make(is_sequence=True)
    data = b"".join(encode_item(item) for item in ("a", {"b": 1}, b"c" * 300))
    for start in range(0, len(data), 50):
        intake.add_chunk(incoming, data[start : start + 50])
    intake.add_end(incoming)
    assert [one.value for one in drain(intake) if isinstance(one, Data)] == ["a", {"b": 1}, b"c" * 300]
    assert result(intake).items == ["a", {"b": 1}, b"c" * 300]


def test_a_sequence_that_ends_inside_an_item_is_damage() -> None:
    intake, incoming, _ = make(is_sequence=True)
    intake.add_chunk(incoming, encode_item("whole") + encode_item("cut off")[:-1])
    intake.add_end(incoming)
    assert intake.take() == [Data("", "whole")]
    with pytest.raises(CartdeckError, match="ended inside an item") as caught:
        intake.take()
    assert caught.value.code is Code.PROTOCOL_VIOLATION


def test_a_result_keeps_so_much_and_says_what_it_lost() -> None:
    intake, incoming, _ = make(keep_bytes=10)
    for _ in range(3):
        intake.add_chunk(incoming, b"12345678")
    assert len(drain(intake)) == 3
    with pytest.raises(CartdeckError, match="24 bytes came"):
        _ = result(intake).data


def test_the_wrong_way_to_an_output_says_the_right_one() -> None:
    intake, incoming, _ = make(is_sequence=True)
    intake.add_chunk(incoming, encode_item({"a": 1}))
    drain(intake)
    with pytest.raises(CartdeckError, match=r"use \.items_of"):
        _ = result(intake).data
    plain, _, _ = make()
    with pytest.raises(CartdeckError, match=r"use \.output"):
        _ = result(plain).items
    assert result(plain).output("absent") == b""
    assert result(plain).items_of("absent") == []


def test_a_chunk_of_many_items_is_decoded_bit_by_bit_and_counts_as_taken_with_the_last() -> None:
    intake, incoming, outlet = make(is_sequence=True)
    data = encode_item(7) * 100_000
    for _ in range(2):
        intake.add_chunk(incoming, data)
    batches = []
    while intake.waiting_chunks:
        assert outlet.granted == 0
        batches.append(len(intake.take()))
    assert sum(batches) == 200_000
    assert max(batches) <= 8 * 1024, "an item of one byte takes 64 in memory"
    assert outlet.granted == 2


def test_large_items_are_decoded_in_large_bits() -> None:
    intake, incoming, _ = make(is_sequence=True)
    data = encode_item(b"x" * 900_000)
    intake.add_chunk(incoming, data)
    turns = 0
    found: list[object] = []
    while intake:
        found += intake.take()
        turns += 1
    assert found == [Data("", b"x" * 900_000)]
    assert turns <= 12


def test_behind_what_is_no_item_nothing_of_a_sequence_is_made_up() -> None:
    intake, incoming, _ = make(is_sequence=True)
    intake.add_chunk(incoming, encode_item("whole") + b"\xc1" + encode_item("behind") * 10_000)
    intake.add_chunk(incoming, encode_item("behind"))
    intake.add_end(incoming)
    with pytest.raises(CartdeckError) as caught:
        intake.take()
    assert caught.value.code is Code.PROTOCOL_VIOLATION
    assert drain(intake) == []
    assert intake.waiting_chunks == 0


def test_log_lines_that_wait_are_bounded_in_bytes_too() -> None:
    intake, _, _ = make()
    for number in range(1000):
        intake.add_log(Log("info", f"{number:05}" + "x" * 60_000, "echo"))
    found = drain(intake)
    assert found[0] == Log("warning", "996 log lines were not taken in time and are lost", "echo")
    assert [one.message[:5] for one in found[1:] if isinstance(one, Log)] == ["00996", "00997", "00998", "00999"]
    intake.add_log(Log("info", "x" * 300_000, "echo"))
    assert len(drain(intake)) == 1, "one line is never too long"


def test_what_waits_beyond_the_budget_comes_back_in_order() -> None:
    backlog = Backlog(3000, 1 << 20, payload_bytes=1024)
    intake, incoming, _ = make(backlog=backlog, keep_bytes=None)
    sent = [bytes((number,)) * (1000 + number % 20) for number in range(50)]
    for payload in sent:
        intake.add_chunk(incoming, payload)
    assert backlog.used_bytes <= 3000
    assert backlog.stored_bytes >= 47 * 1024
    assert [one.value for one in drain(intake) if isinstance(one, Data)] == sent
    intake.hand_over()
    assert (backlog.used_bytes, backlog.stored_bytes) == (0, 0)


def test_items_that_wait_beyond_the_budget_come_back_in_order() -> None:
    backlog = Backlog(0, 1 << 22, payload_bytes=1 << 18)
    intake, incoming, outlet = make(is_sequence=True, backlog=backlog)
    data = b"".join(encode_item(number) for number in range(40_000))
    for start in range(0, len(data), 50_000):
        intake.add_chunk(incoming, data[start : start + 50_000])
    assert backlog.used_bytes == 0
    assert [one.value for one in drain(intake) if isinstance(one, Data)] == list(range(40_000))
    assert backlog.stored_bytes == 0
    assert outlet.granted == 2


@pytest.mark.parametrize("is_sequence", [False, True])
def test_what_nobody_takes_any_more_is_given_back(is_sequence: bool) -> None:
    backlog = Backlog(200_000, 1 << 20, payload_bytes=100_000)
    intake, incoming, _ = make(is_sequence=is_sequence, backlog=backlog, keep_bytes=None)
    for _ in range(5):
        intake.add_chunk(incoming, encode_item(1) * 90_000)
    intake.take()
    assert backlog.used_bytes > 0
    assert backlog.stored_bytes > 0
    del intake
    assert (backlog.used_bytes, backlog.stored_bytes) == (0, 0)


def test_a_result_keeps_less_while_others_keep_much() -> None:
    backlog = Backlog(400_000, 0, payload_bytes=100_000)
    greedy, incoming, _ = make(backlog=backlog, keep_bytes=None)
    other, others, _ = make(backlog=backlog, keep_bytes=None)
    for _ in range(2):
        greedy.add_chunk(incoming, bytes(95_000))
        drain(greedy)
    other.add_chunk(others, bytes(20_000))
    drain(other)
    assert len(result(greedy).data) == 190_000
    assert len(result(other).data) == 20_000, "a little is kept always"
    other.add_chunk(others, bytes(80_000))
    drain(other)
    with pytest.raises(CartdeckError, match="100000 bytes came"):
        _ = result(other).data
    greedy.hand_over()
    assert backlog.used_bytes == 0
    third, thirds, _ = make(backlog=backlog, keep_bytes=None)
    third.add_chunk(thirds, bytes(90_000))
    drain(third)
    assert len(result(third).data) == 90_000


@pytest.mark.parametrize("is_sequence", [False, True])
def test_behind_a_piece_that_cannot_be_read_nothing_is_taken(is_sequence: bool) -> None:
    backlog = Backlog(0, 1 << 20, payload_bytes=10_000)
    intake, incoming, _ = make(is_sequence=is_sequence, backlog=backlog)
    for number in range(3):
        intake.add_chunk(incoming, bytes([number]) * 10_000)
    assert intake.take()
    os.ftruncate(backlog._file, 0)  # pyright: ignore[reportPrivateUsage]  # a disk that forgets
    with pytest.raises(CartdeckError) as caught:
        intake.take()
    assert caught.value.code is Code.INSUFFICIENT_STORAGE
    assert not intake
    assert (intake.waiting_chunks, intake.is_whole, backlog.stored_bytes) == (0, False, 0)


def test_what_was_dropped_waits_no_more_and_what_comes_later_does() -> None:
    backlog = Backlog(1000, 1 << 20, payload_bytes=1024)
    intake, incoming, _ = make(backlog=backlog)
    for _ in range(3):
        intake.add_chunk(incoming, bytes(500))
    intake.add_progress(progress(0.5))
    intake.add_log(Log("info", "line", "echo"))
    intake.drop()
    assert not intake
    assert (intake.waiting_chunks, backlog.used_bytes, backlog.stored_bytes) == (0, 0, 0)
    intake.add_progress(progress(0.6))
    intake.add_chunk(incoming, b"x")
    assert drain(intake) == [progress(0.6), Data("", b"x")]
    assert backlog.used_bytes == 0
