"""How results and errors are written, and in which exit code an error ends."""

import json
import math
import os

import pytest

from cartdeck.cli.exit_codes import ExitCode, exit_code
from cartdeck.cli.render import error_record, error_text, json_line
from cartdeck.events import KeptOutput, Result
from cartdeck.plain import result_record
from cartdeck_protocol.caps import load_shared_definition
from cartdeck_protocol.errors import Code, failure


def kept(*pieces: bytes) -> KeptOutput:
    output = KeptOutput(is_sequence=False)
    output.pieces = list(pieces)
    return output


def kept_items(*items: object) -> KeptOutput:
    output = KeptOutput(is_sequence=True)
    output.pieces = list(items)
    return output


def test_an_error_is_a_paragraph_with_message_code_place_and_remedy() -> None:
    text = error_text(failure(Code.BAD_MODEL_FILE, "x.gguf begins with '<htm', expected 'GGUF'", phase="loading"))
    assert " ".join(text.split()) == (
        "error: x.gguf begins with '<htm', expected 'GGUF'. [BAD_MODEL_FILE, phase loading] "
        "Use a model file of the kind that the message names."
    )
    assert text.endswith("\n")


def test_an_error_is_folded_at_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failure(Code.FILE_NOT_FOUND, f"There is no file {'a folder/' * 40}.\nTwo.")
    for is_terminal in (True, False):
        monkeypatch.setattr(os, "isatty", lambda _descriptor, answer=is_terminal: answer)
        lines = error_text(error).splitlines()
        assert (max(map(len, lines)) > 300, len(lines) > 3) == (not is_terminal, is_terminal)


def test_an_error_of_a_dead_process_shows_its_last_lines() -> None:
    text = error_text(failure(Code.CARTRIDGE_DIED, "gguf died", details={"log": ["loading", "ggml_abort: \x1b[2J"]}))
    assert "\nIts last log lines:\n    loading\n    ggml_abort: \ufffd[2J\n" in text


def test_of_many_log_lines_a_few_are_shown_and_the_rest_counted() -> None:
    log = [f"line {number} " + "x" * 1000 for number in range(40)]
    text = error_text(failure(Code.CARTRIDGE_DIED, "gguf died", details={"log": log}))
    heading, *shown = text[text.index("Its last") :].splitlines()
    assert heading == "Its last log lines (35 before them are not shown):"
    assert [line.split()[1] for line in shown] == ["35", "36", "37", "38", "39"]
    assert sum(1 + len(line) // 80 for line in text.splitlines()) < 24


@pytest.mark.parametrize("code", [Code.CANCELLED, Code.BAD_ARGUMENT])
def test_a_remedy_that_says_nothing_new_is_left_out(code: Code) -> None:
    assert error_text(failure(code, "It is so")) == f"error: It is so. [{code}]\n"
    own = failure(code, "It is so", details={"remedy": "Do that."})
    assert error_text(own) == f"error: It is so. [{code}] Do that.\n"


def test_an_error_record_holds_what_the_wire_holds_and_the_exit_code() -> None:
    error = failure(Code.BAD_ARGUMENT, "max-tokens is 'x'", argument="max-tokens", details={"raw": b"\xff"})
    assert json.loads(json_line(error_record(error, exit_code(error))))["error"] == {
        "code": "BAD_ARGUMENT",
        "class": "input",
        "message": "max-tokens is 'x'",
        "argument": "max-tokens",
        "details": {"raw": {"base64": "/w=="}},
        "remedy": error.remedy,
        "exit_code": 2,
    }


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.BAD_ARGUMENT, ExitCode.BAD_ARGUMENTS),
        (Code.FILE_NOT_FOUND, ExitCode.BAD_ARGUMENTS),
        (Code.NO_SUCH_CAP, ExitCode.NO_SUCH_CAP),
        (Code.AMBIGUOUS_CAP, ExitCode.NO_SUCH_CAP),
        (Code.CARTRIDGE_DIED, ExitCode.CARTRIDGE_FAILED),
        (Code.HANDLER_FAILED, ExitCode.CARTRIDGE_FAILED),
        (Code.OUT_OF_MEMORY, ExitCode.RESOURCE),
        (Code.TIMED_OUT, ExitCode.RESOURCE),
        (Code.CARTRIDGE_UNAVAILABLE, ExitCode.ENVIRONMENT),
        (Code.CANCELLED, ExitCode.INTERRUPTED),
        (Code.READER_STALLED, ExitCode.RESOURCE),
    ],
)
def test_every_kind_of_error_has_its_exit_code(code: Code, status: ExitCode) -> None:
    assert exit_code(failure(code, "x")) is status


def test_every_code_has_an_exit_code() -> None:
    assert all(exit_code(failure(code, "x")) for code in Code)


def test_a_result_record_names_the_cap_the_outputs_and_the_provenance() -> None:
    outputs = {
        "": kept(b"gr\xc3", b"\xbc\xc3\x9f"),
        "details": kept(b"\xff\x00"),
        "events": kept_items({"n": b"\x01"}, 2),
    }
    record = result_record("cap:x", Result(outputs, 1.0, {"seed": 7, "loss": math.inf}))
    assert json.loads(json_line(record)) == {
        "cap": "cap:x",
        "text": "grüß",
        "outputs": {"details": {"base64": "/wA="}, "events": {"items": [{"n": {"base64": "AQ=="}}, 2]}},
        "progress": 1.0,
        "provenance": {"seed": 7, "loss": "inf"},
    }


def test_a_result_of_which_nothing_came_has_its_main_output_all_the_same() -> None:
    nothing = Result({}, 1.0, {})
    chat, vectors = load_shared_definition("chat"), load_shared_definition("embed-text")
    assert result_record("cap:chat", nothing, main=chat.main_output)["text"] == ""
    assert result_record("cap:embed-text", nothing, main=vectors.main_output)["items"] == []
    assert result_record("cap:discard", nothing, main=None).keys() == {"cap", "progress", "provenance"}


def test_a_json_record_is_one_line() -> None:
    assert json_line({"text": "two\nlines"}).count("\n") == 1


def test_a_terminal_that_says_it_has_no_columns_counts_as_80(monkeypatch: pytest.MonkeyPatch) -> None:
    from cartdeck.cli import bar

    monkeypatch.setattr(bar.os, "get_terminal_size", lambda _descriptor: os.terminal_size((0, 0)))
    assert bar.terminal_width() == 80
    assert bar.TextEnd().follow(b"text that must not be erased") == b""


def test_a_file_s_name_that_is_no_utf8_is_a_line_that_reads_back_as_the_same_name() -> None:
    name = os.fsdecode(b"b\xff\\udcff.txt")
    line = json_line({"path": name})
    assert line.encode().isascii()
    assert json.loads(line)["path"] == name
