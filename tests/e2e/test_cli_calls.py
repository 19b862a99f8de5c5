"""`cartdeck call` as a user runs it: what comes out, where, and with which exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))


def cartdeck(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([CARTDECK, *arguments], input=stdin, cwd=cwd, capture_output=True, timeout=60, check=False)


def test_the_output_goes_to_standard_output_byte_for_byte() -> None:
    data = bytes(range(256)) * 5000
    done = cartdeck("call", "echo", "--arg", "data=@-", stdin=data)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == data


def test_standard_input_is_passed_on_as_it_comes() -> None:
    command = [CARTDECK, "call", "echo", "--arg", "data=@-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one", b"two"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.read(3) == line  # while standard input is still open
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_standard_input_that_never_ends_does_not_hold_up_an_error() -> None:
    command = [CARTDECK, "call", "echo", "--arg", "data=@-", "--timeout", "0.3", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(30) == 5


def test_an_argument_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(b"\x00\xff" * 200_000)
    done = cartdeck("call", "echo", "--arg", "data=@in.bin", "--out", "out.bin", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()
    assert (tmp_path / "out.bin").read_bytes() == b"\x00\xff" * 200_000


def test_items_are_printed_as_json_lines() -> None:
    done = cartdeck("call", "emit-items", "--arg", "count=3", "--arg", "size=2")
    assert done.stdout == b'{"base64": "eHg="}\n' * 3


def test_json_prints_one_record_with_text_and_provenance() -> None:
    done = cartdeck("call", "cap:echo;test", "--arg", "data=grüß", "--json")
    record = json.loads(done.stdout)
    assert record["text"] == "grüß"
    assert record["progress"] == 1.0
    assert record["cap"] == "cap:echo;test"
    assert isinstance(record["provenance"], dict)
    assert done.stdout.count(b"\n") == 1


def test_json_with_out_writes_the_output_to_the_file_alone(tmp_path: Path) -> None:
    done = cartdeck("call", "echo", "--arg", "data=hello", "--json", "--out", "answer", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert "text" not in record
    assert record["out"] == "answer"
    assert (tmp_path / "answer").read_text() == "hello"


def test_an_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("precious")
    done = cartdeck("call", "echo", "--arg", "data=new", "--out", "answer", cwd=tmp_path)
    assert done.returncode == 2
    assert b"--force" in done.stderr
    assert (tmp_path / "answer").read_text() == "precious"
    forced = cartdeck("call", "echo", "--arg", "data=new", "--out", "answer", "--force", cwd=tmp_path)
    assert forced.returncode == 0, forced.stderr.decode()
    assert (tmp_path / "answer").read_text() == "new"


def test_a_failed_call_leaves_no_file(tmp_path: Path) -> None:
    done = cartdeck("call", "misbehave", "--arg", "action=raise", "--out", "answer", cwd=tmp_path)
    assert done.returncode == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status", "code", "words"),
    [
        (["call", "fly"], 3, "NO_SUCH_CAP", ["fly", "cartdeck caps"]),
        (["call", "cap:not;;a urn"], 2, "BAD_ARGUMENT", ["no cap"]),
        (["call", "emit", "--arg", "cuont=1"], 2, "UNKNOWN_ARGUMENT", ["cuont", "count", "size", "interval"]),
        (["call", "echo", "--arg", "data=x", "--arg", "out=3"], 2, "UNKNOWN_ARGUMENT", ["'out'", "[UNKNOWN_ARGUMENT]"]),
        (["call", "emit", "--arg", "count=many"], 2, "BAD_ARGUMENT", ["count", "many", "integer"]),
        (["call", "emit", "--arg", "count=-1"], 2, "BAD_ARGUMENT", ["count", "-1"]),
        (["call", "echo"], 2, "MISSING_ARGUMENT", ["data", "For instance: --arg data=@FILE"]),
        (["call", "echo", "--arg", "data"], 2, "BAD_ARGUMENT", ["NAME=VALUE"]),
        (["call", "echo", "--arg", "data=@/no/such/file"], 2, "FILE_NOT_FOUND", ["/no/such/file"]),
        (["call", "misbehave", "--arg", "action=raise"], 4, "HANDLER_FAILED", []),
        (["call", "misbehave", "--arg", "action=exit", "--arg", "amount=7"], 4, "CARTRIDGE_DIED", ["7"]),
        (["call", "work", "--arg", "seconds=30", "--timeout", "0.5"], 5, "TIMED_OUT", []),
    ],
)
def test_an_error_is_one_paragraph_and_an_exit_code(
    arguments: list[str], status: int, code: str, words: list[str]
) -> None:
    done = cartdeck(*arguments, "--quiet")
    text = " ".join(done.stderr.decode().split())
    assert done.returncode == status, text
    assert done.stdout in (b"", b"last words")
    assert text.startswith("error: ")
    assert code in text
    assert all(word in text for word in words), text
    assert "Traceback" not in text.partition("last log lines")[0]


@pytest.mark.parametrize(
    "arguments", [["call", "fly", "--json"], ["call", "--json", "--nonsense"], ["generate", "--json"]]
)
def test_with_json_an_error_is_a_record_too(arguments: list[str]) -> None:
    done = cartdeck(*arguments)
    record = json.loads(done.stdout)["error"]
    assert done.returncode == record["exit_code"] != 0
    assert record["code"]
    assert record["message"]
    assert record["remedy"]
    assert done.stderr == b""


def test_a_file_named_like_a_library_harms_nobody(tmp_path: Path) -> None:
    for name in ("msgpack", "anyio", "cartdeck_sdk", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    done = cartdeck("call", "echo", "--arg", "data=safe", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"safe"), done.stderr.decode()


def test_without_a_terminal_progress_is_a_line_at_each_phase() -> None:
    done = cartdeck("call", "work", "--arg", "steps=40", "--arg", "seconds=0.01")
    assert done.stdout == b"40 steps done"
    lines = done.stderr.decode().splitlines()
    assert 1 <= len(lines) <= 4, lines
    assert "working" in lines[-1]
    assert "\x1b" not in done.stderr.decode()


def test_quiet_says_nothing() -> None:
    done = cartdeck("call", "work", "--arg", "steps=2", "--arg", "seconds=0.01", "--quiet")
    assert (done.returncode, done.stderr) == (0, b"")


def test_lines_of_the_log_go_to_standard_error() -> None:
    done = cartdeck("call", "misbehave", "--arg", "action=log-lines", "--arg", "amount=3")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.decode().count("echo: ") >= 3


def test_a_full_disk_is_a_clear_error() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [CARTDECK, "call", "emit", "--arg", "count=4"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    text = " ".join(done.stderr.decode().split())
    assert done.returncode == 5, text
    assert "standard output failed: No space left on device" in text
    assert "INSUFFICIENT_STORAGE" in text


def test_a_record_that_cannot_be_written_is_said_on_standard_error() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [CARTDECK, "call", "echo", "--arg", "data=x", "--json", "--quiet"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith(b"error: Writing to standard output failed: No space left on device.")


def test_an_error_after_text_in_the_same_place_begins_a_line() -> None:
    command = [CARTDECK, "call", "misbehave", "--arg", "action=exit", "--arg", "amount=7", "--quiet"]
    together = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
    assert together.stdout.startswith(b"last words\nerror: ")
    apart = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert apart.stdout == b"last words"
    assert apart.stderr.startswith(b"error: ")


def test_an_alias_whose_urn_lacks_its_name_is_found() -> None:
    assert cartdeck("call", "identity", "--arg", "data=hi").stdout == b"hi"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_timeout_is_a_positive_number(seconds: str) -> None:
    done = cartdeck("call", "echo", "--arg", "data=hi", "--timeout", seconds)
    assert done.returncode == 2
    assert b"expected a positive number of seconds" in done.stderr


def test_a_full_disk_behind_out_is_a_clear_error() -> None:
    done = cartdeck("call", "emit", "--arg", "count=4", "--out", "/dev/full")
    assert done.returncode == 5
    assert b"/dev/full failed: No space left" in done.stderr
    assert Path("/dev/full").is_char_device()
