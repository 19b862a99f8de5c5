"""The SDK as a host sees it: a real process of the echo cartridge, frame by frame."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_protocol import wire
from cartdeck_protocol.caps import Manifest
from cartdeck_protocol.errors import Code
from cartdeck_sdk.service import WORKERS

Start = Callable[..., Any]


def test_the_greeting_carries_the_manifest_that_lies_beside_the_package(start: Start) -> None:
    driver = start()
    hello = next(event for event in driver.events if isinstance(event, wire.HelloReceived))
    import cartdeck_echo

    assert hello.manifest == (Path(cartdeck_echo.__file__).parent / "manifest.json").read_bytes()
    assert Manifest.from_json(hello.manifest).name == "echo"
    assert driver.close() == 0


def test_identity_gives_back_what_it_was_sent(start: Start) -> None:
    probe = os.urandom(64)
    driver = start()
    exchange = driver.connection.request("cap:effect=none", {"data": probe})
    assert isinstance(driver.terminal(exchange), wire.Finished)
    [started] = [event for event in driver.events if isinstance(event, wire.StreamStarted)]
    assert started.payload == probe


def test_nothing_a_library_prints_reaches_the_wire_and_all_of_it_reaches_the_log(start: Start) -> None:
    driver = start()
    terminal, data, _ = driver.call("cap:misbehave", action="print")
    assert isinstance(terminal, wire.Finished)
    assert data == b"printed"
    log = driver.stderr()
    for text in ("os.write on fd 1", "puts from C", "print from Python", "echo from a child"):
        assert text in log
    assert driver.call("cap:misbehave", action="descriptors")[1] == b"same"


def test_the_frame_pipes_are_above_2_and_closed_on_exec(start: Start) -> None:
    driver = start()
    driver.call("cap:effect=none", data="x")
    folder = Path(f"/proc/{driver.process.pid}/fd")
    if not folder.is_dir():
        pytest.skip("descriptors of another process are read from /proc, which this system lacks")
    pipes: dict[int, str] = {}
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that was open for a moment
            pipes[int(one.name)] = str(one.readlink())
    assert pipes[1] == pipes[2]
    ours = os.fstat(driver.process.stdout.fileno()).st_ino
    [write_fd] = [number for number, target in pipes.items() if target == f"pipe:[{ours}]"]
    assert write_fd > 2
    flags = Path(f"/proc/{driver.process.pid}/fdinfo/{write_fd}").read_text().split("flags:")[1].split()[0]
    assert int(flags, 8) & os.O_CLOEXEC


def test_an_unknown_cap_an_unknown_argument_and_a_wrong_type_each_have_their_code(start: Start) -> None:
    driver = start()
    unknown, _, _ = driver.call("cap:nonsense")
    assert unknown.error.code is Code.NO_SUCH_CAP
    name, _, _ = driver.call("cap:work", stps=1)
    assert name.error.code is Code.UNKNOWN_ARGUMENT
    assert "steps" in name.error.message
    value, _, _ = driver.call("cap:work", steps="many")
    assert value.error.code is Code.BAD_ARGUMENT
    assert value.error.argument == "steps"
    missing, _, _ = driver.call("cap:misbehave")
    assert missing.error.code is Code.MISSING_ARGUMENT
    assert missing.error.argument == "action"


def test_an_exception_is_handler_failed_and_its_traceback_only_in_the_log(start: Start) -> None:
    terminal, _, logs = start().call("cap:misbehave", action="raise")
    assert terminal.error.code is Code.HANDLER_FAILED
    assert terminal.error.message == "ValueError: raised on request"
    assert any("Traceback" in event.message for event in logs)


def test_a_handler_that_ends_the_process_answers_first(start: Start) -> None:
    driver = start()
    terminal, _, _ = driver.call("cap:misbehave", action="system-exit", amount=3)
    assert terminal.error.code is Code.HANDLER_FAILED
    assert driver.process.wait(20) == 3


def test_work_in_a_worker_thread_reports_its_steps_and_repeats_the_last_while_it_is_silent(start: Start) -> None:
    driver = start(keepalive_s=0.05)
    _, data, logs = driver.call("cap:work", steps=3, seconds=0.02)
    assert data == b"3 steps done"
    fractions = [event.progress for event in logs]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    _, _, silent = driver.call("cap:work", steps=1, seconds=1.0, silent="true")
    assert len(silent) >= 3
    assert {event.work for event in silent} == {None}, "a keepalive never makes up work"


def test_a_heartbeat_comes_while_the_loop_is_held(start: Start) -> None:
    driver = start(heartbeat_s=0.1)
    terminal, _, _ = driver.call("cap:misbehave", action="hold-loop", seconds=2.0)
    meanwhile = driver.events[: driver.events.index(terminal)]  # one more may have come in the same read
    beats = [event for event in meanwhile if isinstance(event, wire.HeartbeatReceived)]
    assert len(beats) >= 5
    assert beats[-1].open_requests == 1
    assert beats[-1].rss_bytes > 1_000_000


def test_a_stream_longer_than_its_credit_arrives_whole(start: Start) -> None:
    driver = start(initial_credit=2)
    _, data, _ = driver.call("cap:emit", count=40, size=100_000)
    assert data == b"".join(bytes((index % 16,)) * 100_000 for index in range(40))


def test_an_argument_stream_and_the_answer_flow_at_the_same_time(start: Start) -> None:
    driver = start(initial_credit=2)
    sent = os.urandom(3_000_000)
    exchange = driver.connection.request("cap:echo", complete=False)
    stream = driver.connection.open_stream(exchange, name="data")
    stream.write(sent)
    driver.connection.end(exchange)
    assert isinstance(driver.terminal(exchange), wire.Finished)
    chunks = [event.payload for event in driver.events if isinstance(event, wire.ChunkReceived)]
    assert b"".join(chunks) == sent


def test_an_output_nobody_reads_holds_only_its_own_call(start: Start) -> None:
    driver = start(initial_credit=1)
    stuck = driver.connection.request("cap:emit", {"count": b"100"})
    driver.until(lambda event: isinstance(event, wire.ChunkReceived), takes=False)
    assert driver.call("cap:work", steps=1, seconds=0)[1] == b"1 steps done"
    driver.connection.cancel(stuck, "not wanted")
    assert driver.terminal(stuck).error.code is Code.CANCELLED


def test_items_of_a_sequence_arrive_one_by_one_whatever_the_chunks(start: Start) -> None:
    driver = start()
    terminal, data, _ = driver.call("cap:emit-items", count=1000, size=300)
    assert isinstance(terminal, wire.Finished)
    assert wire.ItemDecoder().feed(data) == [b"x" * 300] * 1000


@pytest.mark.parametrize("action", ["stall", "emit", "work"])
def test_a_cancel_is_answered_in_every_kind_of_wait(start: Start, action: str) -> None:
    driver = start(initial_credit=1)
    caps = {
        "stall": ("cap:misbehave", {"action": b"stall"}),
        "emit": ("cap:emit", {"count": b"10000"}),
        "work": ("cap:work", {"steps": b"1", "seconds": b"60"}),
    }
    exchange = driver.connection.request(*caps[action])
    driver.until(lambda event: isinstance(event, wire.Logged | wire.ChunkReceived), takes=False)
    begun = time.monotonic()
    driver.connection.cancel(exchange, "enough")
    terminal = driver.terminal(exchange)
    assert terminal.error.code is Code.CANCELLED
    assert "enough" in terminal.error.message
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("cap", ["cap:misbehave", "cap:echo", "cap:work"])
def test_a_cancel_right_behind_its_request_is_answered(start: Start, cap: str) -> None:
    driver = start()
    arguments = {"cap:misbehave": {"action": b"stall"}, "cap:echo": {"data": b"x"}, "cap:work": {"steps": b"100"}}
    exchange = driver.connection.request(cap, arguments[cap])
    driver.connection.cancel(exchange, "at once")
    frames = b"".join(bytes(one) for one in driver.connection.outgoing())  # in one write, so that none runs ahead
    assert os.write(driver.process.stdin.fileno(), frames) == len(frames)
    assert driver.terminal(exchange).error.code is Code.CANCELLED
    assert driver.call("cap:work", steps=1, seconds=0)[1] == b"1 steps done"


def test_work_in_a_thread_that_is_cancelled_leaves_no_word_in_the_log_and_does_not_begin_later(start: Start) -> None:
    driver = start()
    works = [driver.connection.request("cap:work", {"steps": b"1000", "silent": b"true"}) for _ in range(WORKERS + 6)]
    assert driver.call("cap:emit", count=1, size=1)[1] == b"\0"
    for exchange in reversed(works):
        driver.connection.cancel(exchange, "never mind")
    assert {driver.terminal(exchange).error.code for exchange in works} == {Code.CANCELLED}
    assert driver.call("cap:work", steps=2, seconds=0.05)[1] == b"2 steps done"
    assert driver.stderr() == ""


def test_a_peer_call_is_asked_of_the_host_and_its_progress_is_mapped(start: Start) -> None:
    driver = start()
    exchange = driver.connection.request("cap:relay", {"cap": b"cap:peer", "data": b"hello"})
    asked = driver.until(lambda event: isinstance(event, wire.RequestReceived))
    assert asked.cap == "cap:peer"
    assert asked.arguments == {"data": b"hello"}
    assert asked.parent == exchange.id
    driver.connection.log(asked.exchange, "progress", "half", progress=0.5, work=5, total=10)
    answer = driver.connection.open_stream(asked.exchange)
    answer.write(b"from the peer")
    driver.connection.end(asked.exchange, provenance={"who": "peer"})
    terminal = driver.terminal(exchange)
    assert terminal.provenance == {"peer": {"who": "peer"}}
    logs = [event for event in driver.events if isinstance(event, wire.Logged)]
    assert [(event.progress, event.work) for event in logs] == [(0.45, 5)]


def test_a_cancel_reaches_the_peer_call(start: Start) -> None:
    driver = start()
    exchange = driver.connection.request("cap:relay", {"cap": b"cap:peer"})
    asked = driver.until(lambda event: isinstance(event, wire.RequestReceived))
    driver.connection.cancel(exchange, "enough")
    cancelled = driver.until(lambda event: isinstance(event, wire.CancelReceived))
    assert cancelled.exchange is asked.exchange
    assert driver.terminal(exchange).error.code is Code.CANCELLED


def test_a_peer_error_is_the_callers_error_unless_the_handler_takes_it(start: Start) -> None:
    from cartdeck_protocol.errors import failure

    driver = start()
    exchange = driver.connection.request("cap:relay", {"cap": b"cap:peer"})
    asked = driver.until(lambda event: isinstance(event, wire.RequestReceived))
    driver.connection.fail(asked.exchange, failure(Code.MODEL_NOT_FOUND, "no such model", details={"near": ["m"]}))
    error = driver.terminal(exchange).error
    assert error.code is Code.MODEL_NOT_FOUND
    assert error.details == {"near": ["m"]}


def test_the_end_of_stdin_ends_the_process_even_inside_a_handler(start: Start) -> None:
    driver = start()
    driver.connection.request("cap:work", {"steps": b"1", "seconds": b"60"})
    driver.until(lambda event: isinstance(event, wire.Logged))
    begun = time.monotonic()
    assert driver.close() == 0
    assert time.monotonic() - begun < 30


def test_the_death_of_the_host_ends_the_process_even_when_the_interpreter_is_held(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("the kernel's death signal is Linux's")
    script = (
        "import subprocess, sys, os, time\n"
        "from cartdeck_protocol import wire\n"
        "p = subprocess.Popen([sys.executable, '-P', '-m', 'cartdeck_sdk', 'cartdeck_echo'], stdin=-1, stdout=-1,"
        " bufsize=0, env={**os.environ, 'CARTDECK_HOST_PID': str(os.getpid())})\n"
        "c = wire.Connection(wire.Role.HOST)\n"
        "c.send_hello()\n"
        "p.stdin.write(b''.join(c.outgoing()))\n"
        "while not c.is_greeted: c.received(os.readv(p.stdout.fileno(), [c.buffer()]))\n"
        "c.request('cap:misbehave', {'action': b'hold-gil', 'seconds': b'60'})\n"
        "p.stdin.write(b''.join(c.outgoing()))\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    end = time.monotonic() + 30
    while time.monotonic() < end and _is_alive(pid):
        time.sleep(0.02)
    assert not _is_alive(pid)


def test_a_file_named_like_a_library_in_the_working_directory_harms_nobody(start: Start, tmp_path: Path) -> None:
    for name in ("msgpack.py", "asyncio.py", "json.py", "cartdeck_protocol.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module was imported')\n")
    assert start(folder=str(tmp_path)).call("cap:work", steps=1, seconds=0)[1] == b"1 steps done"


def test_another_protocol_version_is_refused_and_both_are_named() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cartdeck_sdk", "cartdeck_echo"], stdin=-1, stdout=-1, stderr=-1, bufsize=0
    )
    host = wire.Connection(wire.Role.HOST, software="old host")
    host.send_hello()
    data = b"".join(host.outgoing()).replace(b"protocol\x01", b"protocol\x09")
    out, log = process.communicate(data, timeout=60)
    assert process.returncode == 1
    assert b"version 1" in log
    assert b"version 9" in log
    [hello, refused] = host.receive(out)
    assert isinstance(hello, wire.HelloReceived)
    assert refused.error.code is Code.VERSION_MISMATCH


def test_a_package_that_is_not_there_or_serves_nothing_is_one_line_on_stderr(tmp_path: Path) -> None:
    for name, files, said in (
        ("absent", {}, "no package absent is installed in this Python"),
        ("bare", {"__init__.py": ""}, "has neither a `cartridge` nor a module `handlers` that has one"),
        ("idle", {"__init__.py": "", "handlers.py": ""}, "has neither a `cartridge` nor a module `handlers`"),
        ("broken", {"__init__.py": "import broken.nothing"}, "No module named 'broken.nothing'"),
    ):
        for file, text in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "cartdeck_sdk", name],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
        assert ("Traceback" in done.stderr) is (name == "broken")


def test_manifest_is_printed_without_claiming_the_pipes() -> None:
    found = subprocess.run([sys.executable, "-m", "cartdeck_echo", "manifest"], capture_output=True, check=True)
    assert Manifest.from_json(found.stdout).name == "echo"
    wrong = subprocess.run([sys.executable, "-m", "cartdeck_echo", "nonsense"], capture_output=True, check=False)
    assert wrong.returncode == 2
    assert b"it serves echo, emit" in wrong.stderr


@pytest.mark.parametrize("package", ["cartdeck_echo", "cartdeck_models", "cartdeck_gguf"])
def test_the_manifest_of_each_shipped_cartridge_is_what_its_sources_say(package: str) -> None:
    subprocess.run([sys.executable, "-m", "cartdeck_sdk.manifest", package, "--check"], check=True)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
