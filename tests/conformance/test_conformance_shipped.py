"""The echo cartridge passes the kit; the command line says it in text and in JSON, and ends with a code."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from cartdeck_conformance import Durations, Options, check_cartridge, check_cartridge_async

CARTDECK = [sys.executable, "-P", "-c", "import sys; from cartdeck.cli.main import main; sys.exit(main())"]
DOUBLES = Path(__file__).parent / "doubles"


def cartdeck(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CARTDECK, *words], capture_output=True, text=True, timeout=110, check=False)


def test_echo_passes_every_check_by_its_name() -> None:
    done = cartdeck("check", "echo", "--fast", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["passed"], record["not_exercised"]) == (0, True, []), done.stdout
    assert len(record["results"]) == 30


def test_a_peer_that_nobody_answers_for_is_named() -> None:
    sample = {"relay": {"data": "x", "cap": "cap:nobody"}}
    command = [sys.executable, "-P", "-m", "cartdeck_sdk", "cartdeck_echo"]
    report = check_cartridge(command, fast=True, only={6}, options=Options(samples=sample))
    assert report.passed, str(report)
    assert any("calls cap:nobody" in line for line in report.not_exercised)
    told = Options(samples=sample, peers={"cap:nobody": "an answer"})
    assert not check_cartridge(command, fast=True, only={6}, options=told).not_exercised


def test_a_failed_check_ends_with_1_and_says_what_to_do() -> None:
    command = shlex.join([sys.executable, str(DOUBLES / "broken_answer.py"), "6"])
    done = cartdeck("check", command, "--only", "6", "--fast")
    assert done.returncode == 1
    assert "no voice today" in done.stdout
    assert "do: Mend the handler" in done.stdout


@pytest.mark.parametrize("words", [["no-such-cartridge"], ["echo", "--only", "99"]])
def test_what_cannot_be_checked_ends_with_2(words: list[str]) -> None:
    assert cartdeck("check", *words).returncode == 2


def test_an_interrupt_ends_the_check_and_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = tmp_path / "sleeper.py"
    program.write_text(f"import os, time\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(60)\n")
    command = shlex.join([sys.executable, str(program)])
    with subprocess.Popen([*CARTDECK, "check", command], stdout=subprocess.DEVNULL) as running:
        until(pids.exists)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()))


@pytest.mark.anyio
async def test_a_cancel_ends_the_check_beside_other_tasks(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"import os, time\nopen({str(pids)!r}, 'a').write(str(os.getpid()))\ntime.sleep(60)\n"
    options = Options(durations=Durations(exit_s=0.5))
    with anyio.move_on_after(1.5) as scope:
        await check_cartridge_async([sys.executable, "-c", program], options=options)
    assert scope.cancelled_caught
    pid = pids.read_text() if pids.exists() else ""  # it may have ended before it wrote its number
    until(lambda: not pid or not Path(f"/proc/{pid}").exists())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def until(condition: object, limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.02)
