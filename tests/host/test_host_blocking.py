"""The engine for callers that do not await: the same names, from any thread, and Ctrl-C."""

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import CartdeckError, Code, Data, End, Progress, Settings

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """What a process keeps once, such as the signal pipe of uvloop where it is installed, is no leak of an engine's."""
    with cartdeck.open(Settings()):
        pass


def test_a_call_blocks_and_gives_events_and_a_result(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        assert engine.run("cap:echo", {"data": "plain"}, timeout_s=20).text == "plain"
        with engine.call("work", {"steps": 3, "seconds": 0.01}) as call:
            events = list(call)
        assert isinstance(events[-1], End)
        assert any(isinstance(event, Progress) for event in events)
        assert call.result.text == "3 steps done"
        assert "work" in {entry.definition.alias for entry in engine.caps()}


def test_errors_arrive_bare(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine, pytest.raises(CartdeckError) as caught:
        engine.run("cap:ecko")
    assert caught.value.code is Code.NO_SUCH_CAP


def test_any_thread_may_call(quick: Callable[..., Settings]) -> None:
    answers: list[str] = []
    with cartdeck.open(quick()) as engine:

        def work(number: int) -> None:
            for turn in range(5):
                answers.append(engine.run("echo", {"data": f"{number} {turn}"}, timeout_s=20).text)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(answers) == sorted(f"{number} {turn}" for number in range(4) for turn in range(5))


def test_leaving_a_call_early_cancels_it(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        with engine.call("emit", {"count": 100_000, "interval": 0.001}) as call:
            for event in call:
                if isinstance(event, Data):
                    break
        assert engine.run("echo", {"data": "on"}, timeout_s=30).text == "on"


def test_load_unload_and_listing(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        engine.load("echo", timeout_s=20)
        echo = next(one for one in engine.cartridges() if one.cartridge.name == "echo")
        assert [one.state for one in echo.sessions] == ["ready"]
        assert engine.unload("echo") == 1
        assert engine.reset() == 0
        assert isinstance(engine.broken(), list)


def test_an_engine_that_is_not_open_says_so() -> None:
    engine = cartdeck.open()
    for ask in (lambda: engine.run("echo"), lambda: engine.call("echo").__enter__(), engine.caps):
        with pytest.raises(CartdeckError, match="not open") as caught:
            ask()
        assert caught.value.code is Code.ABORTED


HUGE = pytest.param(10**5000, id="huge")


@pytest.mark.parametrize("timeout_s", [-1, 0, math.nan, math.inf, "x", True, HUGE])
def test_a_time_limit_that_is_none_is_refused_at_once(quick: Callable[..., Settings], timeout_s: Any) -> None:
    with cartdeck.open(quick()) as engine:
        for ask in (
            lambda: engine.run("echo", {"data": "x"}, timeout_s=timeout_s),
            lambda: engine.call("echo", {"data": "x"}, timeout_s=timeout_s).__enter__(),
            lambda: engine.load("echo", timeout_s=timeout_s),
        ):
            with pytest.raises(CartdeckError, match="expected a number of seconds above 0") as caught:
                ask()
            assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "timeout_s")
        assert all(not one.sessions for one in engine.cartridges())


@pytest.mark.parametrize("arguments", ["hi", 5, ["data"], {5: "x"}, {b"data": "x"}])
def test_arguments_that_are_no_mapping_of_names_are_refused(quick: Callable[..., Settings], arguments: Any) -> None:
    with cartdeck.open(quick()) as engine:
        for ask in (engine.run, engine.load, engine.unload):
            with pytest.raises(CartdeckError, match="expected a") as caught:
                ask("echo", arguments)
            assert caught.value.code is Code.BAD_ARGUMENT
        with pytest.raises(CartdeckError, match="expected text") as caught:
            engine.run(5)  # type: ignore[arg-type]  # the point
        assert (caught.value.code, caught.value.argument) == (Code.BAD_ARGUMENT, "cap")


INTERRUPTED = """
import os, signal, sys, threading, time
import cartdeck
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that puts its jobs behind makes them ignore it
with cartdeck.open() as engine:
    engine.run("echo", {"data": b""})
    pid = engine.cartridges()[0].sessions[0].pid
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        engine.run("misbehave", {"action": "stall"})
    except KeyboardInterrupt:
        print("interrupted")
    end = time.monotonic() + 20
    while engine.cartridges()[0].sessions[0].open_requests and time.monotonic() < end:
        time.sleep(0.01)
    print(engine.cartridges()[0].sessions[0].open_requests, engine.run("echo", {"data": "on"}).text)
    print(pid == engine.cartridges()[0].sessions[0].pid)
"""


def test_an_interrupt_cancels_the_call_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["interrupted", "0 on", "True"], done.stderr
    assert done.returncode == 0


FORKED = """
import os, signal, sys
import cartdeck
signal.alarm(40)
with cartdeck.open() as engine:
    print(engine.run("echo", {"data": "before"}).text, flush=True)
    child = os.fork()
    if child == 0:
        try:
            engine.run("echo", {"data": "in the fork"})
        except cartdeck.CartdeckError as error:
            print(error.code_name, "this is a fork of it" in str(error), flush=True)
        with cartdeck.open() as own:
            print(own.run("echo", {"data": "its own"}).text, flush=True)
    else:
        assert os.waitpid(child, 0)[1] == 0
        print(engine.run("echo", {"data": "after"}).text, flush=True)
"""


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_of_an_open_engine_is_told_so_and_its_parent_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["before", "ABORTED True", "its own", "after"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_help_needs_neither_pydantic_nor_anyio() -> None:
    program = "import sys, cartdeck; sys.exit(str({'pydantic', 'anyio', 'msgpack', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=30)
    assert done.stderr.strip() == "set()"
    assert sorted(cartdeck.__all__) == sorted(name for name in cartdeck.__all__ if hasattr(cartdeck, name))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = cartdeck.absent  # type: ignore[attr-defined]  # the point


def test_an_engine_that_is_never_closed_keeps_no_program_from_its_end() -> None:
    program = """
import cartdeck
engine = cartdeck.open().__enter__()
print(engine.run("echo", {"data": "x"}).text, next(one.pid for c in engine.cartridges() for one in c.sessions))
raise ValueError("the program's own")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=60, text=True)
    text, pid = done.stdout.split()
    assert (text, done.returncode) == ("x", 1)
    assert done.stderr.endswith("ValueError: the program's own\n")
    assert not Path(f"/proc/{pid}").exists()


def test_a_call_that_comes_while_the_engine_closes_is_aborted(quick: Callable[..., Settings]) -> None:
    """However far it is: its loop ends behind its last task, and waits for the threads that it lent."""
    errors: list[BaseException] = []
    released, closing = threading.Event(), threading.Event()
    engine = cartdeck.open(quick())
    engine.__enter__()
    engine.on_loop(lambda: asyncio.get_running_loop().run_in_executor(None, released.wait, 20) and None)

    def work() -> None:
        while True:
            try:
                engine.run("echo", {"data": "x"}, timeout_s=20)
            except BaseException as error:
                errors.append(error)
                if closing.is_set() and len(errors) >= 20:
                    released.set()
                    return

    thread = threading.Thread(target=work)
    thread.start()
    portal = engine._portal  # pyright: ignore[reportPrivateUsage]  # when its loop takes nothing more is not public
    closer = threading.Thread(target=engine.close)
    closer.start()
    for _ in range(4000):
        if portal is None or portal._event_loop_thread_id is None:  # pyright: ignore[reportPrivateUsage]  # the same
            break
        closer.join(0.005)
    errors.clear()
    closing.set()
    for one in (closer, thread):
        one.join(30)
        assert not one.is_alive()
    assert {getattr(error, "code", error) for error in errors} == {Code.ABORTED}


def test_an_engine_is_entered_once_at_a_time(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        with pytest.raises(RuntimeError, match=r"use `with engine\.call"):
            list(engine.call("cap:echo", {"data": "x"}))
        with pytest.raises(RuntimeError, match="open already"):
            engine.__enter__()
        assert engine.run("echo", {"data": "x"}, timeout_s=20).text == "x"
    with engine:
        assert engine.run("echo", {"data": "again"}, timeout_s=20).text == "again"
