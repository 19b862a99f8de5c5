"""What waits for a caller: in order, bounded, whole characters and whole items; and what a result keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartdeck.backlog import Backlog
from cartdeck.events import Data, Log, Progress, Result
from cartdeck.intake import KEEP_ALL, Incoming, Intake
from cartdeck.window import Reserve, Window
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
        keep_bytes=keep_bytes or 0,
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
