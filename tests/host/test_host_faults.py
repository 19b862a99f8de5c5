"""Processes that die, hang, flood, and speak wrongly: each caller learns it in time, nobody else is harmed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Data, Engine, Log, Progress, Settings
from cartdeck.sessions import life
from cartdeck.sessions.session import Session
from cartdeck_protocol import wire

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

ROOT = Path(__file__).parents[2]


async def failure_of(work: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await work
    return caught.value


async def session_of(engine: Engine) -> Session:
    """The session of echo, started."""
    await engine.load("echo", timeout_s=20)
    return next(session for session in engine.pool.sessions if session.key.cartridge == "echo")


# -- death


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a_process_killed_mid_stream_fails_its_calls_within_a_second(
    engine: Engine, number: signal.Signals
) -> None:
    session = await session_of(engine)
    loop = asyncio.get_running_loop()
    other = asyncio.create_task(engine.run("misbehave", {"action": "stall"}))
    await engine.run("misbehave", {"action": "print"}, timeout_s=30)
    async with engine.call("emit", {"count": 100_000, "interval": 0.001}, keep_bytes=0) as call:
        async for event in call:
            if isinstance(event, Data):
                break
        began = loop.time()
        assert session.process is not None
        os.kill(session.process.pid, number)
        error = await failure_of(call.collect())
    assert loop.time() - began < 10.0  # a second, on a machine that has one
    assert error.code is Code.CARTRIDGE_DIED
    assert error.details["signal"] == number.name
    assert "print from Python" in error.details["log"]
    assert number.name in str(error)
    assert (await failure_of(other)).code is Code.CARTRIDGE_DIED
    assert (await engine.run("echo", {"data": b"next"}, timeout_s=30)).data == b"next"


async def test_a_death_in_the_first_call_after_its_answer_began_is_no_failed_start(engine: Engine) -> None:
    async with engine.call("emit", {"count": 100_000, "interval": 0.001}, keep_bytes=0) as call:
        async for event in call:
            if isinstance(event, Data):
                break
        process = engine.pool.sessions[0].process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert (await failure_of(call.collect())).code is Code.CARTRIDGE_DIED
    assert (await engine.run("echo", {"data": b"next"}, timeout_s=30)).data == b"next"


async def test_a_call_that_is_left_at_once_costs_no_process(engine: Engine) -> None:
    await engine.run("echo", {"data": b"warm"}, timeout_s=30)
    [session] = engine.pool.sessions
    for _ in range(5):
        async with engine.call("work", {"steps": 100}):
            pass
    assert (await engine.run("echo", {"data": b"next"}, timeout_s=30)).data == b"next"
    assert engine.pool.sessions == [session]
    assert session.is_open_to_new


@pytest.mark.parametrize("status", [0, 3])
async def test_an_exit_with_open_calls_is_a_death_whatever_its_status(engine: Engine, status: int) -> None:
    error = await failure_of(engine.run("misbehave", {"action": "exit", "amount": status}, timeout_s=30))
    assert error.code is Code.CARTRIDGE_DIED
    assert error.details["exit_code"] == status


async def test_frames_written_before_the_death_are_read_first(engine: Engine) -> None:
    seen: list[bytes] = []
    async with engine.call("misbehave", {"action": "exit", "amount": 1}) as call:

        async def read() -> None:
            async for event in call:
                if isinstance(event, Data):
                    seen.append(event.value)

        assert (await failure_of(read())).code is Code.CARTRIDGE_DIED
    assert b"".join(seen) == b"last words"


async def test_an_idle_process_that_dies_is_noticed_and_replaced(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    session = await session_of(engine)
    await engine.run("echo", {"data": b""})
    assert session.process is not None
    os.kill(session.process.pid, signal.SIGKILL)
    await wait_until(lambda: not engine.pool.sessions)
    assert (await engine.run("echo", {"data": b"new"}, timeout_s=30)).data == b"new"


async def test_a_grandchild_that_holds_the_pipes_delays_no_news_and_does_not_survive(
    engine: Engine, runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    session = await session_of(engine)
    grandchild = int((await engine.run("misbehave", {"action": "grandchild"}, timeout_s=30)).text)
    assert runs(grandchild)
    task = asyncio.create_task(engine.run("misbehave", {"action": "stall"}))
    await wait_until(lambda: session.open_requests == 1)
    began = asyncio.get_running_loop().time()
    assert session.process is not None
    os.kill(session.process.pid, signal.SIGKILL)
    assert (await failure_of(task)).code is Code.CARTRIDGE_DIED
    assert asyncio.get_running_loop().time() - began < 10.0  # a second, on a machine that has one
    await wait_until(lambda: not runs(grandchild))


# -- health


async def test_a_stopped_process_is_hung_and_replaced(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(health={"heartbeat_s": 0.2})) as engine:
        session = await session_of(engine)
        await engine.run("echo", {"data": b""})
        assert session.process is not None
        os.kill(session.process.pid, signal.SIGSTOP)
        error = await failure_of(engine.run("misbehave", {"action": "stall"}, timeout_s=30))
        assert error.code is Code.HUNG
        assert "3 heartbeats are missing" in str(error)
        assert (await engine.run("echo", {"data": b"new"}, timeout_s=30)).data == b"new"


async def test_a_loop_that_is_held_still_beats(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(health={"heartbeat_s": 0.3})) as engine:
        result = await engine.run("misbehave", {"action": "hold-loop", "seconds": 1.5}, timeout_s=30)
        assert result.text == "held the loop"


async def test_a_silent_call_times_out_and_keepalives_keep_it(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(call={"silence_s": 0.9}, health={"keepalive_s": 0.1})) as engine:
        work = {"steps": 12, "seconds": 0.1, "silent": True}
        assert (await engine.run("work", work, timeout_s=20)).text == "12 steps done"
        error = await failure_of(engine.run("misbehave", {"action": "stall"}, timeout_s=20))
        assert error.code is Code.TIMED_OUT
        assert "gave no sign for 0.9 s" in str(error)
        assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"


async def test_alive_without_advance_is_stalled(quick: Callable[..., Settings]) -> None:
    async with Engine(quick(call={"silence_s": 10.0, "stall_s": 1.0}, health={"keepalive_s": 0.1})) as engine:
        work = {"steps": 100, "seconds": 0.1, "silent": True}
        assert (await failure_of(engine.run("work", work, timeout_s=20))).code is Code.STALLED
        steady = {"steps": 15, "seconds": 0.1}
        assert (await engine.run("work", steady, timeout_s=20)).text == "15 steps done"


async def test_a_reader_that_does_not_read_ends_its_own_call(
    quick: Callable[..., Settings], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(call={"reader_s": 1.4, "silence_s": 0.8})) as engine:
        await engine.run("echo", {"data": b""})
        async with engine.call("emit", {"count": 1000}, keep_bytes=0) as call:
            async for event in call:
                if isinstance(event, Data):
                    break
            await asyncio.sleep(1.0)  # within the limit: the cartridge's own clock stands meanwhile
            other = await engine.run("echo", {"data": b"other"}, timeout_s=30)
            assert other.data == b"other"
            await wait_until(lambda: call.is_answered)
            assert (await failure_of(call.collect())).code is Code.READER_STALLED


# -- output where it does not belong


async def test_what_is_printed_lands_in_the_log_and_not_on_the_wire(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    result = await engine.run("misbehave", {"action": "print"}, timeout_s=30)
    assert result.text == "printed"
    session = await session_of(engine)
    assert session.process is not None
    log = session.process.log  # it is read beside the wire: the answer may come first
    for text in ("os.write on fd 1", "puts from C", "print from Python", "echo from a child"):
        await wait_until(lambda text=text: text in log.tail(100))
    assert (await engine.run("misbehave", {"action": "descriptors"}, timeout_s=30)).text == "same"


@pytest.mark.parametrize("action", ["flood-stderr", "flood-stdout"])
async def test_a_megabyte_of_log_before_the_reply_holds_nothing_up(
    engine: Engine, action: str, wait_until: Callable[..., Any]
) -> None:
    session = await session_of(engine)
    began = asyncio.get_running_loop().time()
    await engine.run("misbehave", {"action": action, "amount": 1 << 20}, timeout_s=30)
    assert asyncio.get_running_loop().time() - began < 20.0  # 0.1 s on a machine that does nothing else
    assert session.process is not None
    log = session.process.log
    await wait_until(lambda: log.total_bytes >= 1 << 20)  # it is read beside the wire: the answer may come first
    assert log.dropped_bytes > 0


async def test_log_lines_that_a_caller_does_not_take_are_bounded_and_counted(
    quick: Callable[..., Settings], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(call={"log_lines": 100})) as engine:
        async with engine.call("misbehave", {"action": "log-lines", "amount": 5000}) as call:
            await wait_until(lambda: call.is_answered)
            logs = [event.message async for event in call if isinstance(event, Log)]
        assert logs[-1] == "line 4999"
        assert logs[0] == "4900 log lines were not taken in time and are lost"
        assert len(logs) == 101


async def test_a_module_in_the_working_directory_harms_nobody(tmp_path: Path) -> None:
    for name in ("msgpack.py", "asyncio.py", "cartdeck_sdk.py"):
        (tmp_path / name).write_text("raise RuntimeError('imported from the working directory')\n", "utf-8")
    program = tmp_path / "elsewhere" / "host.py"
    program.parent.mkdir()
    program.write_text(
        "import cartdeck\nwith cartdeck.open() as engine:\n    print(engine.run('echo', {'data': 'fine'}).text)\n",
        "utf-8",
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


# -- the wire broken


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("start-four-gigabytes", Code.FRAME_TOO_LARGE, "4294967295"),
        ("start-hundred-megabytes", Code.FRAME_TOO_LARGE, "104857600"),
        ("start-no-frame", None, "start-no-frame"),
        ("start-text", None, "start-text"),
        ("identity", Code.IDENTITY_FAILED, "77726f6e67"),
        ("manifest", Code.MANIFEST_DRIFT, "it is other 0.1.0, expected manifest 0.1.0"),
        ("version", Code.VERSION_MISMATCH, "version 99"),
        (
            "dies",
            Code.START_FAILED,
            "exited with status 3 before it was ready. Its last log line: cannot find libexample.so",
        ),
        ("silent", Code.START_FAILED, "gave no hello"),
        ("talkative", Code.START_FAILED, "was not ready after 0.9 s"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    quick: Callable[..., Settings], hostile: Callable[[str], str], mode: str, code: Code | None, words: str
) -> None:
    cap = hostile(mode)
    limits = {"silent": {"step_s": 0.3}, "talkative": {"step_s": 0.3, "hard_s": 0.9}}
    async with Engine(quick(start=limits.get(mode, {}))) as engine:
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
        assert error.code is code or (code is None and error.code in (Code.FRAME_TOO_LARGE, Code.PROTOCOL_VIOLATION))
        assert words in str(error)
        if mode not in limits:  # within such limits a slow machine starts no other process either
            assert (await engine.run("cap:echo;test", {"data": b"x"}, timeout_s=30)).data == b"x"


@pytest.mark.parametrize("mode", ["four-gigabytes", "no-frame", "hundred-megabytes", "text"])
async def test_garbage_mid_life_ends_that_process_alone(
    quick: Callable[..., Settings], hostile: Callable[[str], str], mode: str
) -> None:
    cap = hostile(mode)
    async with Engine(quick()) as engine:
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
        assert error.code in (Code.FRAME_TOO_LARGE, Code.PROTOCOL_VIOLATION)
        assert error.code is Code.FRAME_TOO_LARGE or mode not in ("four-gigabytes", "hundred-megabytes")
        assert (await engine.run("cap:echo;test", {"data": b"x"}, timeout_s=30)).data == b"x"


async def test_a_frame_that_is_cut_off_by_a_death_is_a_death(
    quick: Callable[..., Settings], hostile: Callable[[str], str]
) -> None:
    cap = hostile("cut")
    async with Engine(quick()) as engine:
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
    assert error.code is Code.CARTRIDGE_DIED
    assert error.details["exit_code"] == 0


async def test_damage_inside_a_request_ends_that_request_alone(
    quick: Callable[..., Settings], hostile: Callable[[str], str]
) -> None:
    cap = hostile("cut-item")
    async with Engine(quick()) as engine:
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
        assert error.code is Code.PROTOCOL_VIOLATION
        assert "ended inside an item" in str(error)
        session = engine.pool.sessions[0]
        await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
        assert engine.pool.sessions == [session]


async def test_an_unanswered_damage_is_answered_by_the_engine(
    quick: Callable[..., Settings], hostile: Callable[[str], str], wait_until: Callable[..., Any]
) -> None:
    cap = hostile("unknown-stream")
    async with Engine(quick()) as engine:
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
        assert error.code is Code.PROTOCOL_VIOLATION
        assert "stream 7" in str(error)
        await wait_until(lambda: not engine.pool.sessions)  # it never answers the CANCEL


async def test_a_mistake_in_the_engine_fails_the_calls_of_that_session_instead_of_losing_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.run("echo", {"data": b""})
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))

    def mistaken(*_arguments: object) -> None:
        raise ZeroDivisionError("a mistake")

    async with engine.call("work", {"steps": 3}, timeout_s=30) as call:
        monkeypatch.setattr(Call, "on_log", mistaken)
        error = await failure_of(call.collect())
    assert error.code is Code.INTERNAL
    assert "ZeroDivisionError: a mistake" in str(error)
    assert [type(one) for one in reported] == [ZeroDivisionError]
    monkeypatch.undo()
    assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"


async def test_a_mistake_with_one_event_loses_none_of_its_batch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await session_of(engine)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    received = session.connection.received
    batch: list[wire.Event] = []

    def in_one_batch(size: int) -> list[wire.Event]:
        batch.extend(received(size))
        return batch if sum(isinstance(event, wire.Finished) for event in batch) == 4 else []

    finished = Call.on_finished
    mistaken: list[Call] = []

    def mistaken_once(call: Call, progress: float, provenance: dict[str, Any]) -> None:
        if not mistaken:
            mistaken.append(call)
            raise ZeroDivisionError("a mistake")
        finished(call, progress, provenance)

    monkeypatch.setattr(session.connection, "received", in_one_batch)
    monkeypatch.setattr(Call, "on_finished", mistaken_once)
    stalled = asyncio.create_task(engine.run("misbehave", {"action": "stall"}))
    calls = [asyncio.create_task(engine.run("echo", {"data": b"x"})) for _ in range(4)]
    done, _ = await asyncio.wait([stalled, *calls], timeout=30)
    assert len(done) == 5
    errors = [call.exception() for call in calls if call.exception()]
    assert [(getattr(error, "code", None), "ZeroDivisionError: a mistake" in str(error)) for error in errors] == [
        (Code.INTERNAL, True)
    ]
    assert (await failure_of(stalled)).code is Code.INTERNAL, "the session is ended, since it cannot be trusted"
    assert [type(one) for one in reported] == [ZeroDivisionError]
    assert session.open_requests == 0


async def test_a_request_that_is_damaged_and_ended_at_once_counts_once(
    quick: Callable[..., Settings], hostile: Callable[[str], str]
) -> None:
    cap = hostile("log-without-message")
    async with Engine(quick()) as engine:
        for _ in range(3):
            error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=60))
            assert error.code is Code.PROTOCOL_VIOLATION
            assert engine.pool.sessions[0].open_requests == 0
        async with asyncio.timeout(20):
            assert await engine.unload() == 1


async def test_who_is_ended_with_another_that_answers_no_cancel_is_told_the_truth(
    quick: Callable[..., Settings],
) -> None:
    async with Engine(quick(call={"cancel_s": 0.2, "abandon_s": 0.4})) as engine:
        session = await session_of(engine)
        innocent = asyncio.create_task(engine.run("work", {"steps": 100, "seconds": 0.1}, timeout_s=60))
        async with engine.call("misbehave", {"action": "ignore-cancel", "seconds": 30}) as call:
            async for event in call:
                if isinstance(event, Progress) and event.message == "ignoring cancels":
                    break
        assert session.open_requests == 2
        error = await failure_of(innocent)
        assert error.code is Code.HUNG
        assert "did not answer a cancelled call" in str(error)
        assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"


async def test_answers_behind_the_last_but_one_are_told_before_a_stuck_session_is_ended(
    quick: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick(call={"cancel_s": 0.1, "abandon_s": 20.0})) as engine:
        session = await session_of(engine)
        received = session.connection.received
        batch: list[wire.Event] = []

        def in_one_batch(size: int) -> list[wire.Event]:
            batch.extend(received(size))
            return batch if sum(isinstance(event, wire.Finished) for event in batch) == 2 else []

        work = {"steps": 20, "seconds": 0.1}
        innocent = [asyncio.create_task(engine.run("work", work, timeout_s=60)) for _ in range(2)]
        async with engine.call("misbehave", {"action": "ignore-cancel", "seconds": 30}) as call:
            async for event in call:
                if isinstance(event, Progress) and event.message == "ignoring cancels":
                    break
        await wait_until(lambda: call.is_answered)
        monkeypatch.setattr(session.connection, "received", in_one_batch)
        assert [result.text for result in await asyncio.gather(*innocent)] == ["20 steps done"] * 2
        await wait_until(lambda: not engine.pool.sessions)


@pytest.mark.parametrize("mistake", [MemoryError(), ZeroDivisionError("a mistake")])
async def test_bytes_that_cannot_be_understood_end_that_session_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, mistake: Exception
) -> None:
    session = await session_of(engine)
    await engine.run("echo", {"data": b"warm"}, timeout_s=30)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)

    def received(_size: int) -> list[Any]:
        raise mistake

    monkeypatch.setattr(session.connection, "received", received)
    error = await failure_of(engine.run("echo", {"data": b"x"}, timeout_s=30))
    assert error.code is (Code.OUT_OF_MEMORY if isinstance(mistake, MemoryError) else Code.INTERNAL)
    assert ("no memory left" if isinstance(mistake, MemoryError) else "ZeroDivisionError: a mistake") in str(error)
    assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"


# -- starts that fail again and again


async def test_failures_before_the_first_answer_back_off_and_end_in_quarantine(
    quick: Callable[..., Settings], hostile: Callable[[str], str], wait_until: Callable[..., Any]
) -> None:
    cap = hostile("dies")
    settings = quick(restart={"first_s": 0.1, "longest_s": 0.2, "quarantine_after": 3})
    async with Engine(settings) as engine:
        started = 0
        for _ in range(200):
            error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=30))
            assert "cannot find libexample.so" in str(error)
            if error.code is Code.QUARANTINED:
                break
            started += "retry_after_s" not in error.details
            await asyncio.sleep(0.02)
        else:
            pytest.fail("never quarantined")
        assert started == 3
        assert engine.reset() == 1
        error = await failure_of(engine.run(cap, {"data": b"x"}, timeout_s=30))
        assert error.code is Code.START_FAILED


@pytest.mark.parametrize("step", ["launch", "Channel"])
async def test_a_mistake_of_the_engine_at_a_start_is_a_failed_start_with_a_pause(
    quick: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tries: list[str] = []

    def mistaken(*_arguments: object, **_options: object) -> None:
        tries.append(step)
        raise ZeroDivisionError("a mistake")

    async with Engine(quick(restart={"first_s": 30.0, "longest_s": 30.0})) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(life, step, mistaken)
            for _ in range(3):
                error = await failure_of(engine.run("echo", {"data": b"x"}, timeout_s=30))
                assert error.code is Code.START_FAILED
                assert "ZeroDivisionError: a mistake" in str(error)
        assert tries == [step]
        engine.reset()
        assert (await engine.run("echo", {"data": b"on"}, timeout_s=30)).data == b"on"


async def test_all_who_wait_for_a_start_that_fails_learn_it(
    quick: Callable[..., Settings], hostile: Callable[[str], str]
) -> None:
    cap = hostile("dies")
    async with Engine(quick()) as engine:
        errors = await asyncio.gather(
            *(engine.run(cap, {"data": b"x"}, timeout_s=30) for _ in range(5)), return_exceptions=True
        )
    assert [getattr(error, "code", None) for error in errors] == [Code.START_FAILED] * 5


async def test_a_start_that_is_cancelled_leaves_no_child(
    quick: Callable[..., Settings], children: Callable[[], list[int]], wait_until: Callable[..., Any]
) -> None:
    async with Engine(quick()) as engine:
        for number in range(20):
            task = asyncio.create_task(engine.run("echo", {"data": b""}))
            await asyncio.sleep(0.001 * number)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if engine.pool.sessions and engine.pool.sessions[0].has_answered:
                await engine.unload()
        await wait_until(lambda: not children() or engine.pool.sessions)


# -- the host's own end


HOST = """
import asyncio, sys, cartdeck
async def main():
    async with cartdeck.Engine() as engine:
        await engine.run("echo", {"data": b""})
        task, grandchild = None, 0
        if sys.argv[1] == "grandchild":
            grandchild = int((await engine.run("misbehave", {"action": "grandchild"})).text)
        if sys.argv[1] == "hold-gil":
            task = asyncio.create_task(engine.run("misbehave", {"action": "hold-gil", "seconds": 30}))
            await asyncio.sleep(0.3)
        print(engine.pool.sessions[0].process.pid, grandchild, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "hold-gil", "grandchild"])
async def test_no_cartridge_outlives_a_killed_host(
    state: str, runs: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    host = subprocess.Popen(  # noqa: ASYNC220  # a host that is to be killed
        [sys.executable, "-c", HOST, state], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    with host, host.stdout:
        pid, grandchild = map(int, (await asyncio.to_thread(host.stdout.readline)).split())
        assert runs(pid)
        host.kill()
    await wait_until(lambda: not runs(pid))
    if grandchild:  # nobody is left to look for it
        os.kill(grandchild, signal.SIGKILL)


async def test_progress_is_seen_before_a_failure(engine: Engine) -> None:
    await engine.load("echo", timeout_s=20)
    async with engine.call("misbehave", {"action": "stall"}, timeout_s=1.5) as call:
        seen: list[object] = []

        async def read() -> None:
            async for event in call:
                seen.append(event)

        assert (await failure_of(read())).code is Code.TIMED_OUT
    assert any(isinstance(event, Progress) and event.phase == "stalling" for event in seen)
