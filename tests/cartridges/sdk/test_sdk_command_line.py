"""A cartridge without a host: called from a command line, whatever its arguments and outputs are."""

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_sdk.peer_relay import PeerRelay

ECHO = [sys.executable, "-m", "cartdeck_echo"]


def run(*words: str, data: bytes | None = b"", status: int = 0) -> tuple[bytes, str]:
    done = subprocess.run([*ECHO, *words], input=data, capture_output=True, timeout=100, check=False)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def test_help_is_made_from_the_definitions() -> None:
    told = run("--help")[0].decode()
    assert "emit-items" in told
    told = run("emit", "--help")[0].decode()
    assert "--count COUNT  (an integer" in told
    assert "default" in told


@pytest.mark.parametrize("words", [["echo", "hello"], ["echo", "--arg", "data=hello"], ["echo", "@@hello"]])
def test_a_value_is_given_in_place(words: list[str]) -> None:
    assert run(*words)[0].removeprefix(b"@") == b"hello"


def test_a_value_comes_from_standard_input_or_a_file_however_large(tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(data)
    assert run("echo", data=data)[0] == data
    assert run("echo", "@-", data=data)[0] == data
    assert run("echo", f"@{tmp_path / 'file'}")[0] == data


def test_items_are_json_lines_and_progress_goes_to_standard_error() -> None:
    out, _ = run("emit-items", "--count", "2", "--size=3")
    assert [json.loads(line) for line in out.splitlines()] == [{"base64": "eHh4"}] * 2
    out, said = run("work", "--steps", "4")
    assert out == b"4 steps done"
    assert "50 %  working" in said
    assert run("work", "--steps", "4", "--quiet")[1] == run("work", "--steps", "4", "-q")[1] == ""


def test_peer_calls_are_served_by_a_host_that_is_started_for_them() -> None:
    emit = ["relay", "--cap", "cap:emit", "--argument", "", "--arg"]
    out, _ = run(*emit, 'arguments={"count": 40, "size": 100000}')
    assert len(out) == 4_000_000
    assert run("relay", "--cap", "cap:echo", "--data", "x" * 100_000)[0] == b"x" * 100_000
    _, said = run("relay", "--cap", "cap:nobody-has-this", status=2)
    assert "NO_SUCH_CAP" in said


def test_without_a_host_a_peer_call_is_refused_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with selectors.DefaultSelector() as selector:
        relay = PeerRelay(None, selector)  # type: ignore[arg-type]  # it is not spoken to before there is a desk
        with pytest.raises(CartdeckError, match="the program cartdeck is not here") as caught:
            relay._start_desk("cap:echo")
    assert caught.value.code is Code.CARTRIDGE_UNAVAILABLE


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nope"], 2, "NO_SUCH_CAP"),
        (["emit", "--count", "many"], 2, "expected an integer"),
        (["emit", "--cuont", "3"], 2, "did you mean 'count'"),
        (["emit", "--count"], 2, "--count needs a value"),
        (["emit", "--bogus"], 2, "has no argument 'bogus'"),
        (["emit", "--arg", "count"], 2, "expected --arg count=VALUE"),
        (["echo", "a", "b"], 2, "one value too many"),
        (["echo", "@/no/such/file"], 2, "cannot be read"),
        (["echo", "--output", "other", "a"], 2, "no output 'other'"),
        (["misbehave", "--action", "exit"], 4, "CARTRIDGE_DIED"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(words: list[str], status: int, said: str) -> None:
    assert said in run(*words, status=status)[1]


def test_a_signal_cancels_the_call() -> None:
    words = [*ECHO, "work", "--steps", "1000", "--seconds", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"CANCELLED" in process.stderr.read()


def test_a_reader_that_leaves_ends_the_call_quietly() -> None:
    command = f"{sys.executable} -m cartdeck_echo emit --count 100000 --size 1000 | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert len(done.stdout) == 10
    assert b"Traceback" not in done.stderr
