"""Where a command's output goes: files that appear when whole, and text that a terminal may show."""

import os
import stat
from pathlib import Path

import pytest

from cartdeck.cli.endings import ReaderGone
from cartdeck.cli.output import FileOutput, StandardOutput, TerminalText, open_output, write_all
from cartdeck_protocol.errors import CartdeckError, Code


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "answer.txt"
    with FileOutput(place, force=False) as output:
        output.write(b"half")
        assert not place.exists()
        output.write(b" and half")
        output.commit()
    assert place.read_bytes() == b"half and half"
    assert [path.name for path in tmp_path.iterdir()] == ["answer.txt"]


def test_a_file_that_was_not_committed_leaves_nothing(tmp_path: Path) -> None:
    with FileOutput(tmp_path / "answer.txt", force=False) as output:
        output.write(b"half")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_refused_before_any_work(tmp_path: Path) -> None:
    place = tmp_path / "answer.txt"
    place.write_text("precious")
    with pytest.raises(CartdeckError, match="--force") as caught:
        FileOutput(place, force=False)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert place.read_text() == "precious"


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "answer.txt"
    with FileOutput(place, force=False) as output:
        output.write(b"new")
        place.write_text("precious")
        with pytest.raises(CartdeckError, match="exists already"):
            output.commit()
    assert place.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["answer.txt"]


def test_force_replaces_a_file_and_keeps_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "answer.txt"
    place.write_text("old")
    place.chmod(0o640)
    with FileOutput(place, force=True) as output:
        output.write(b"new")
        output.commit()
    assert place.read_text() == "new"
    assert stat.S_IMODE(place.stat().st_mode) == 0o640


def test_force_through_a_link_replaces_the_file_it_names(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with FileOutput(link, force=True) as output:
        output.write(b"new")
        output.commit()
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with FileOutput(tmp_path / "answer.txt", force=False) as output:
            output.commit()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "answer.txt").stat().st_mode) == 0o640


@pytest.mark.parametrize(("name", "complaint"), [("", "is a folder"), ("missing/answer.txt", "cannot be written")])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(CartdeckError, match=complaint) as caught:
        FileOutput(tmp_path / name, force=True)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_and_not_replaced() -> None:
    with FileOutput(Path("/dev/null"), force=False) as output:
        output.write(b"gone")
        output.commit()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_disk_is_a_resource_error() -> None:
    with FileOutput(Path("/dev/full"), force=False) as output, pytest.raises(CartdeckError, match="No space") as caught:
        output.write(b"too much")
    assert caught.value.code is Code.INSUFFICIENT_STORAGE


def test_a_dash_is_standard_output() -> None:
    assert isinstance(open_output(Path("-"), force=False), StandardOutput)
    assert isinstance(open_output(None, force=False), StandardOutput)


def test_a_pipe_without_a_reader_is_no_error_but_an_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(ReaderGone):
            write_all(writing, b"anyone?", name="a pipe")
    finally:
        os.close(writing)


def test_text_for_a_terminal_cannot_command_it() -> None:
    shown = TerminalText().feed("a\x1b[31mred\x9b31m\r\n\tb\x07".encode())
    assert shown.decode() == "a\ufffd[31mred\ufffd31m\n\tb\ufffd"


def test_text_for_a_terminal_comes_in_whole_characters() -> None:
    text = TerminalText()
    euro = "€".encode()
    assert text.feed(euro[:1]) == b""
    assert text.feed(euro[1:]) == euro
    assert text.feed(b"", is_last=True) == b""


@pytest.mark.parametrize("data", [b"\x89PNG\r\n", "€".encode()[:2]])
def test_binary_output_is_not_sent_to_a_terminal(data: bytes) -> None:
    with pytest.raises(CartdeckError, match="--out FILE, or have it as a record with --json"):
        TerminalText().feed(data, is_last=True)
