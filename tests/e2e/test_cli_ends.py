"""How a command ends early: Ctrl-C, a reader that leaves, closed descriptors. Nothing may stay behind."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
PATIENCE_S = 20.0
ENDLESS = ["call", "emit", "--arg", "count=1000000", "--arg", "size=64", "--arg", "interval=0.01"]


class Family:
    """The processes of one command, found by a variable that all of them inherit."""

    def __init__(self) -> None:
        self.mark = f"CARTDECK_TEST_MARK={uuid.uuid4()}"
        self.environment = {**os.environ, "CARTDECK_TEST_MARK": self.mark.partition("=")[2]}

    def start(self, arguments: list[str], **streams: int) -> subprocess.Popen[bytes]:
        command = [CARTDECK, *arguments]
        return subprocess.Popen(command, env=self.environment, start_new_session=True, **streams)

    def members(self) -> list[int]:
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def is_gone(self, within_s: float) -> bool:
        limit = time.monotonic() + within_s
        while time.monotonic() < limit:
            if not self.members():
                return True
            time.sleep(0.02)
        return False


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    for process in family.members():
        os.kill(process, signal.SIGKILL)


def read_some(process: subprocess.Popen[bytes]) -> None:
    """Waits until output comes: the call runs now."""
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1)


def wait_until_sigterm_is_caught(process: subprocess.Popen[bytes]) -> None:
    """Python itself does not catch it: the command has taken its first step now."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_call_and_leaves_no_process(family: Family, number: signal.Signals) -> None:
    process = family.start(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_some(process)
    assert len(family.members()) >= 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert b"CANCELLED" in errors
    assert b"Traceback" not in errors
    assert family.is_gone(within_s=PATIENCE_S)


def test_ctrl_c_leaves_no_half_of_a_file(family: Family, tmp_path: Path) -> None:
    process = family.start([*ENDLESS, "--out", str(tmp_path / "answer")], stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline()  # the first phase
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_call_whose_reader_has_stopped_reading(family: Family) -> None:
    process = family.start(["call", "emit", "--arg", "count=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_some(process)  # and no more: the pipe fills, and the writing thread stands still
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert family.is_gone(within_s=PATIENCE_S)
    process.communicate()


def test_a_second_ctrl_c_ends_at_once(family: Family) -> None:
    stubborn = ["call", "misbehave", "--arg", "action=ignore-cancel", "--arg", "seconds=60"]
    process = family.start(stubborn, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    limit = time.monotonic() + PATIENCE_S
    while len(family.members()) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)  # two signals at the same instant would be one
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert time.monotonic() - started < PATIENCE_S / 2  # the cartridge would go on for a minute
    assert family.is_gone(within_s=PATIENCE_S)
    process.communicate()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_starts_has_its_exit_code(
    family: Family, number: signal.Signals, delay_s: float
) -> None:
    process = family.start(["generate", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until_sigterm_is_caught(process)
    time.sleep(delay_s)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 128 + number
    _, errors = process.communicate()
    assert errors == b""


def test_ctrl_c_before_anything_is_imported_has_its_exit_code_too() -> None:
    program = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "cartdeck.cli.endings":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
before = set(sys.modules)
from cartdeck.cli.main import main
assert not {"typing", "re", "signal"} & (set(sys.modules) - before), "what Ctrl-C would end with a traceback"
sys.exit(main())
"""
    command = [sys.executable, "-c", program, "caps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_many_signals_at_the_end_are_as_one(family: Family) -> None:
    process = family.start(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_some(process)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert family.is_gone(within_s=PATIENCE_S)


def test_a_reader_that_leaves_ends_the_call_quietly(family: Family) -> None:
    process = family.start(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_some(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert b"error" not in errors
    assert b"Traceback" not in errors
    assert family.is_gone(within_s=PATIENCE_S)


def test_head_takes_its_line_from_a_listing() -> None:
    script = f"set -o pipefail; '{CARTDECK}' caps --json | head -c 5"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False)
    assert done.stdout == b'{"cap'
    assert done.stderr == b""
    assert done.returncode in (0, 141)


@pytest.mark.parametrize(("closed", "status"), [("<&-", 0), (">&-", 141), ("2>&-", 0), ("<&- 2>&-", 0)])
def test_a_closed_descriptor_is_not_taken_for_a_pipe(closed: str, status: int) -> None:
    script = f"'{CARTDECK}' call echo --arg data=hello {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr.decode()
    assert done.stdout == (b"hello" if status == 0 else b"")
    assert b"Traceback" not in done.stderr


def test_an_error_without_standard_error_still_has_its_exit_code() -> None:
    done = subprocess.run(["bash", "-c", f"'{CARTDECK}' call fly 2>&-"], timeout=60, check=False)
    assert done.returncode == 3
