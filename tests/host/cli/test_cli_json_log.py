"""The log as JSON: which lines come, and that those of the engine's own loggers are objects too."""

import json
import logging
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest

from cartdeck.cli.bar import open_display
from cartdeck.cli.display import Display
from cartdeck.cli.json_log import json_log, start_json_log
from cartdeck.events import Log, Progress


@pytest.fixture
def display() -> Iterator[Display]:
    """What a command shows its call on, with --log-json."""
    handlers = list(logging.getLogger().handlers)
    context = copy_context()
    context.run(start_json_log)
    yield context.run(open_display, is_quiet=False, is_verbose=False)
    logging.getLogger().handlers[:] = handlers


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def progress(fraction: float, phase: str | None) -> Progress:
    return Progress(fraction, "looking", phase, None, None, "models")


def test_a_phase_is_spelt_as_the_cartridge_spells_it(display: Display, capsys: pytest.CaptureFixture[str]) -> None:
    display.progress(progress(0.1, "look_up"))
    (line,) = written(capsys)
    assert (line["phase"], line["progress"], line["cartridge"]) == ("look_up", 0.1, "models")


def test_a_phase_in_which_little_time_passed_is_one_line(
    display: Display, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(10):
        display.progress(progress(step / 10, "load"))
    display.tick()
    assert len(written(capsys)) == 1
    monkeypatch.setattr("cartdeck.cli.json_log.JsonLines.news_every_s", 0.0)
    display.tick()
    display.tick()
    (line,) = written(capsys)
    assert line["progress"] == 0.9


def test_debug_lines_are_left_out_unless_they_are_asked_for(
    display: Display, capsys: pytest.CaptureFixture[str]
) -> None:
    for level in ("debug", "info", "strange"):
        display.log(Log(level, "text\nin two lines", "gguf"))
    assert [(one["level"], one["message"]) for one in written(capsys)] == [
        ("info", "text\nin two lines"),
        ("strange", "text\nin two lines"),
    ]


def test_warnings_of_the_engine_are_objects_and_its_lesser_lines_are_left_out(
    display: Display, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("cartdeck.sessions.session").warning("%s: a stray", "echo")
    logging.getLogger("cartdeck.sessions.session").info("nothing")
    logging.getLogger("cartdeck.cartridge.gguf").error("what it wrote to stderr")
    assert [(one["level"], one["message"], one["cartridge"], one["logger"]) for one in written(capsys)] == [
        ("warning", "echo: a stray", None, "cartdeck.sessions.session"),
        ("error", "what it wrote to stderr", "gguf", "cartdeck.cartridge.gguf"),
    ]


def test_without_the_option_there_is_no_json_log() -> None:
    assert json_log() is None
