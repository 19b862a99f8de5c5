"""What is said of a call's progress: as numbers with their unit, and as plain lines."""

import pytest

from cartdeck.cli.bar import clipped
from cartdeck.cli.display import PlainLines, State, harmless, is_shown
from cartdeck.events import Log, Progress


def progress(phase: str | None, message: str, **numbers: float | None) -> Progress:
    known: dict[str, float | None] = {"fraction": 0.1, "work": None, "total": None, **numbers}
    return Progress(message=message, phase=phase, cartridge="gguf", **known)


@pytest.mark.parametrize(
    ("event", "amount"),
    [
        (progress("download", "x.gguf", work=5e7, total=1e8), "50.0/100.0 MB"),
        (progress("download", "x.gguf", work=5e7), "50.0 MB"),
        (progress("prompt", "Reading the prompt", work=31, total=48), "31/48 tokens"),
        (progress("inference", "Embedding texts", work=3, total=4), "3/4"),
        (progress("working", "step", work=3, total=4), "3/4"),
        (progress("inference", "Generating: 31 of 48 tokens", work=31, total=48), ""),
        (progress("working", "step"), ""),
    ],
)
def test_an_amount_has_its_unit_and_is_not_said_twice(event: Progress, amount: str) -> None:
    state = State()
    state.take(event)
    assert state.amount == amount


def test_an_event_without_a_fraction_keeps_the_last_one() -> None:
    state = State()
    state.take(progress("load", "loading", fraction=0.3))
    assert not state.take(progress("load", "", fraction=None))
    assert (state.fraction, state.message) == (0.3, "loading")
    assert state.take(progress("inference", "", fraction=None))
    assert (state.fraction, state.message) == (0.3, "")


def test_plain_lines_come_at_a_new_phase_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines()
    for step in range(100):
        lines.progress(progress("look_up", "searching", fraction=step / 1000))
    lines.progress(progress("load", "loading x.gguf", fraction=0.25))
    lines.tick()
    assert capsys.readouterr().err.splitlines() == ["  0% look up: searching", " 25% load: loading x.gguf"]


def test_log_lines_are_shown_from_their_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines("info")
    for level in ("debug", "info", "error"):
        lines.log(Log(level, f"a {level}\x1b[2J", "gguf"))
    assert capsys.readouterr().err.splitlines() == ["gguf: info: a info\ufffd[2J", "gguf: error: a error\ufffd[2J"]
    assert is_shown("strange", "error")


def test_the_lines_of_a_traceback_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    PlainLines().log(Log("error", "Traceback:\n  File\x1b[2J\nValueError: x\n", "gguf"))
    assert capsys.readouterr().err.splitlines() == [
        "gguf: error: Traceback:",
        "      File\ufffd[2J",
        "    ValueError: x",
    ]


def test_a_message_is_one_harmless_line() -> None:
    assert harmless("a\nb\r\x07c") == "a b\ufffdc"


def test_a_text_that_is_cut_off_shows_it() -> None:
    assert clipped("Generating: 0 of 400 tokens", 20) == "Generating: 0 of 40…"
    assert clipped("Reading", 7) == "Reading"
    assert clipped("Reading", 0) == ""
