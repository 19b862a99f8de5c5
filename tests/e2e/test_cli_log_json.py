"""`cartdeck --log-json`: every line on standard error is an object that says which call it is about."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
ALWAYS = ["time", "level", "cap", "call", "session", "request", "cartridge", "message"]


def cartdeck(*arguments: str, trace: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"CARTDECK_TRACE": str(trace)} if trace else {})}
    command = [CARTDECK, "--log-json", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(list(one)[: len(ALWAYS)] == ALWAYS for one in found)
    return found


def test_progress_carries_its_numbers_and_its_call() -> None:
    done = cartdeck("call", "work", "--arg", "steps=4", "--arg", "seconds=0.4")
    assert (done.returncode, done.stdout) == (0, "4 steps done")
    found = lines(done)
    assert {(one["level"], one["cap"], one["session"], one["cartridge"]) for one in found} == {
        ("progress", "work", "echo", "echo")
    }
    assert len({one["call"] for one in found}) == 1
    assert found[0]["phase"] == "starting"
    assert found[0]["request"] is None
    working = [one for one in found if one["phase"] == "working"]
    assert working[-1]["request"] == 4
    assert working[-1]["total"] == 4
    assert [one["progress"] for one in found] == sorted(one["progress"] for one in found)


def test_log_lines_of_a_cartridge_are_objects() -> None:
    found = lines(cartdeck("call", "misbehave", "--arg", "action=log-lines", "--arg", "amount=3"))
    logs = [one for one in found if one["level"] == "info"]
    assert [(one["message"], one["cartridge"], one["cap"]) for one in logs] == [
        (f"line {number}", "echo", "misbehave") for number in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("call", "no-such-cap"), 3, "NO_SUCH_CAP"),
        (("call", "echo", "--no-such-option"), 2, "BAD_ARGUMENT"),
        (("call", "misbehave", "--arg", "action=exit", "--arg", "amount=3"), 4, "CARTRIDGE_DIED"),
    ],
)
def test_an_error_is_the_last_line_with_its_record(arguments: tuple[str, ...], status: int, code: str) -> None:
    done = cartdeck(*arguments)
    assert done.returncode == status
    last = lines(done)[-1]
    assert (last["level"], last["error"]["code"], last["error"]["exit_code"]) == ("error", code, status)
    assert last["message"] == last["error"]["message"]


def test_json_on_standard_output_and_the_log_do_not_mix() -> None:
    done = cartdeck("call", "no-such-cap", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "NO_SUCH_CAP"
    assert done.stderr == ""


def test_quiet_leaves_only_the_error() -> None:
    assert lines(cartdeck("call", "work", "--arg", "steps=2", "--quiet")) == []
    (error,) = lines(cartdeck("call", "misbehave", "--arg", "action=raise", "--quiet"))
    assert (error["level"], error["cap"], error["request"]) == ("error", "misbehave", 4)


def test_an_interrupted_call_says_so_as_an_object() -> None:
    command = [CARTDECK, "--log-json", "call", "work", "--arg", "steps=100", "--arg", "seconds=60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while json.loads(process.stderr.readline())["phase"] != "working":
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().splitlines()
        assert process.wait(30) == 130
    assert json.loads(rest[-1])["error"]["code"] == "CANCELLED"


def test_the_log_names_the_request_that_a_trace_shows(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = cartdeck("call", "misbehave", "--arg", "action=log-lines", "--arg", "amount=1", trace=path)
    last = lines(done)[-1]
    command = [CARTDECK, "trace", str(path), "--session", last["session"], "--request", str(last["request"])]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "misbehave" in shown
    assert "line 0" in shown
