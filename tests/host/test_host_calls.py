"""Calls on a real process: events, results, arguments of every kind, cancel, time limits, bare errors."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Call, CartdeckError, Code, Data, End, Engine, Log, Progress, Settings

pytestmark = pytest.mark.anyio


async def code_of(work: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await work
    return caught.value


async def drain(call: Call, seen: list[object] | None = None) -> None:
    """Iterate to the end."""
    async for event in call:
        if seen is not None:
            seen.append(event)


async def told(call: Call, message: str) -> None:
    """Until the call says so."""
    async for event in call:
        if isinstance(event, Progress) and event.message == message:
            return
    pytest.fail(f"the call never said: {message}")


async def test_a_call_gives_its_events_and_then_its_result(engine: Engine) -> None:
    events: list[object] = []
    async with engine.call("cap:work", {"steps": 4, "seconds": 0.02}, timeout_s=20) as call:
        async for event in call:
            events.append(event)
    assert isinstance(events[-1], End)
    assert call.result.text == "4 steps done"
    assert call.result.progress == 1.0
    assert [one.text for one in events if isinstance(one, Data)] == ["4 steps done"]
    fractions = [one.fraction for one in events if isinstance(one, Progress) and one.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    work = [one for one in events if isinstance(one, Progress) and one.work is not None]
    assert (work[-1].work, work[-1].total, work[-1].phase, work[-1].cartridge) == (4, 4, "working", "echo")


async def test_the_first_call_tells_that_a_process_is_starting(engine: Engine) -> None:
    async with engine.call("echo", {"data": b"x"}) as call:
        events = [event async for event in call]
    assert isinstance(events[0], Progress)
    assert (events[0].phase, events[0].fraction) == ("starting", 0.0)
    async with engine.call("echo", {"data": b"x"}) as call:
        assert [type(event) async for event in call] == [Data, End]


async def test_log_lines_of_a_call_reach_its_caller(engine: Engine) -> None:
    async with engine.call("misbehave", {"action": "log-lines", "amount": 3}) as call:
        logs = [event async for event in call if isinstance(event, Log)]
    assert logs == [Log("info", f"line {number}", "echo") for number in range(3)]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 262_144, 262_145, 1_398_490, 16 * 1024 * 1024])
async def test_any_size_of_data_goes_there_and_back(engine: Engine, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    result = await engine.run("echo", {"data": data[:size]}, timeout_s=30)
    assert result.data == data[:size]


async def test_what_a_plain_iterable_gave_is_sent_while_it_blocks_for_the_next(engine: Engine) -> None:
    go = threading.Event()

    def source() -> Iterator[bytes]:
        yield b"one "
        yield b"two"
        assert go.wait(30)
        yield b" three"

    seen = b""
    async with engine.call("echo", {"data": source()}, timeout_s=60) as call:
        async for event in call:
            if isinstance(event, Data):
                seen += event.value
                if seen == b"one two":
                    go.set()
    assert seen == b"one two three"


async def test_files_and_iterables_are_read_while_outputs_come(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"0123456789abcdef" * 200_000)
    assert (await engine.run("echo", {"data": path}, timeout_s=30)).data == path.read_bytes()

    async def parts() -> AsyncIterator[bytes | str]:
        for number in range(1000):
            yield f"{number} " if number % 2 else f"{number} ".encode()

    def plain() -> Iterator[bytes]:
        for number in range(1000):
            yield f"{number} ".encode()

    expected = b"".join(plain())
    assert (await engine.run("echo", {"data": parts()}, timeout_s=30)).data == expected
    assert (await engine.run("echo", {"data": plain()}, timeout_s=30)).data == expected
    assert (await engine.run("echo", {"data": bytearray(expected)}, timeout_s=30)).data == expected


async def test_a_source_that_fails_ends_the_call_with_its_words(engine: Engine) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x"
        raise OSError("the tape broke")

    error = await code_of(engine.run("echo", {"data": parts()}, timeout_s=20))
    assert (error.code, error.argument) == (Code.BAD_ARGUMENT, "data")
    assert "OSError: the tape broke" in str(error)
    error = await code_of(engine.run("echo", {"data": iter([1])}, timeout_s=20))
    assert "must be bytes or text, found int" in str(error)
    assert (await engine.run("echo", {"data": b"on"}, timeout_s=20)).data == b"on"


async def test_items_of_a_sequence_come_one_by_one(engine: Engine) -> None:
    async with engine.call("emit-items", {"count": 5000, "size": 16}) as call:
        items = [event.value async for event in call if isinstance(event, Data)]
    assert items == [b"x" * 16] * 5000
    assert call.result.items == items


async def test_a_slow_reader_holds_no_more_than_its_window(engine: Engine) -> None:
    async with engine.call("emit", {"count": 100}, keep_bytes=0) as call:
        await asyncio.sleep(0.3)
        intake = call._intake  # pyright: ignore[reportPrivateUsage]  # how much waits is nobody else's business
        assert intake is not None
        assert intake.waiting_chunks <= engine.settings.wire.initial_credit
        size = 0
        async for event in call:
            if isinstance(event, Data):
                size += len(event.value)
    assert size == 100 * 262_144


@pytest.mark.parametrize(
    ("cap", "arguments", "code"),
    [
        ("cap:ecko", {"data": b""}, Code.NO_SUCH_CAP),
        ("cap:echo", {}, Code.MISSING_ARGUMENT),
        ("cap:echo", {"dta": b""}, Code.UNKNOWN_ARGUMENT),
        ("cap:work", {"steps": "many"}, Code.BAD_ARGUMENT),
        ("cap:misbehave", {"action": "dance"}, Code.BAD_ARGUMENT),
        ("no cap at all", {}, Code.BAD_ARGUMENT),
        ("cap:misbehave", {"action": "raise"}, Code.HANDLER_FAILED),
        ("cap:relay", {"cap": ""}, Code.EMPTY_INPUT),
    ],
)
async def test_errors_arrive_bare(engine: Engine, cap: str, arguments: dict[str, Any], code: Code) -> None:
    error = await code_of(engine.run(cap, arguments, timeout_s=20))
    assert type(error) is not ExceptionGroup
    assert error.code is code

    async def iterate() -> None:
        async with engine.call(cap, arguments, timeout_s=20) as call:
            await drain(call)

    assert (await code_of(iterate())).code is code


async def test_what_came_before_an_error_is_seen_first(engine: Engine) -> None:
    seen: list[object] = []
    async with engine.call("misbehave", {"action": "signal", "amount": int(signal.SIGKILL)}) as call:
        error = await code_of(drain(call, seen))
    assert Data("", b"last words") in seen
    with pytest.raises(CartdeckError) as caught:
        _ = call.result
    assert caught.value is error


async def test_a_call_may_be_opened_in_one_task_and_closed_in_another(engine: Engine) -> None:
    call = engine.call("work", {"steps": 1000}, timeout_s=30)

    async def open_it() -> None:
        await call.__aenter__()

    async def look() -> None:
        async for event in call:
            if isinstance(event, Progress) and event.work:
                return

    async def close_it() -> None:
        await call.__aexit__(None, None, None)

    for step in (open_it, look, close_it):
        async with asyncio.timeout(30):
            await asyncio.create_task(step())
    error = await code_of(call.collect())
    assert error.code is Code.CANCELLED


async def test_leaving_a_call_cancels_it_in_the_cartridge(engine: Engine, wait_until: Callable[..., Any]) -> None:
    async with engine.call("work", {"steps": 100_000, "seconds": 0.01}) as call:
        async for event in call:
            if isinstance(event, Progress) and event.work:
                break
    session = engine.pool.sessions[0]
    await wait_until(lambda: session.open_requests == 0)
    assert (await engine.run("echo", {"data": b"still here"}, timeout_s=30)).data == b"still here"
    assert engine.pool.sessions == [session]


async def test_a_cancelled_task_cancels_its_call(engine: Engine, wait_until: Callable[..., Any]) -> None:
    await engine.run("echo", {"data": b""})
    session = engine.pool.sessions[0]
    task = asyncio.create_task(engine.run("misbehave", {"action": "stall"}))
    await wait_until(lambda: session.open_requests == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: session.open_requests == 0)


async def test_cancel_ends_the_iteration_with_its_reason_and_twice_is_once(engine: Engine) -> None:
    async with engine.call("misbehave", {"action": "stall"}) as call:
        async for event in call:
            if isinstance(event, Progress) and event.phase == "stalling":
                call.cancel("changed my mind")
                call.cancel("again")
                break
        error = await code_of(drain(call))
    assert error.code is Code.CANCELLED
    assert "changed my mind" in str(error)


async def test_a_handler_that_ignores_cancel_is_answered_for_and_its_process_replaced(
    engine: Engine, wait_until: Callable[..., Any]
) -> None:
    await engine.run("echo", {"data": b""})
    pid = engine.pool.sessions[0].process.pid
    loop = asyncio.get_running_loop()
    async with engine.call("misbehave", {"action": "ignore-cancel", "seconds": 30}) as call:
        await told(call, "ignoring cancels")
        began = loop.time()
        call.cancel()
        error = await code_of(call.collect())
    assert error.code is Code.CANCELLED
    assert loop.time() - began < engine.settings.call.cancel_s + 15.0  # it goes on for 30
    assert (await engine.run("echo", {"data": b"new"}, timeout_s=30)).data == b"new"
    assert engine.pool.sessions[0].process.pid != pid


async def test_a_process_that_answers_a_cancel_late_is_used_again(quick: Callable[..., Settings]) -> None:
    settings, work = quick(call={"cancel_s": 0.3, "abandon_s": 20.0}), {"steps": 100_000, "seconds": 0.01}
    async with Engine(settings) as engine, engine.call("work", work, timeout_s=60) as other:  # keeps the process alive
        session = engine.pool.sessions[0]
        while not session.open_requests:
            await other.next_events()
        async with engine.call("misbehave", {"action": "stall"}) as call:
            await told(call, "about to stall")
            assert session.process is not None
            os.kill(session.process.pid, signal.SIGSTOP)
            call.cancel()
            assert (await code_of(call.collect())).code is Code.CANCELLED
        assert session.is_closed_to_new
        waiting = asyncio.create_task(engine.run("echo", {"data": b"waits"}, timeout_s=30))
        await asyncio.sleep(0)
        os.kill(session.process.pid, signal.SIGCONT)
        assert (await waiting).data == b"waits"
        assert engine.pool.sessions == [session]


async def test_a_call_has_a_time_limit(engine: Engine) -> None:
    error = await code_of(engine.run("misbehave", {"action": "stall"}, timeout_s=0.3))
    assert error.code is Code.TIMED_OUT
    assert "0.3 s" in str(error)
    error = await code_of(engine.run("echo", {"data": b""}, timeout_s=1e-9))
    assert error.code is Code.TIMED_OUT


async def test_sources_that_block_keep_neither_other_calls_nor_the_engine_waiting(
    quick: Callable[..., Settings], wait_until: Callable[..., Any]
) -> None:
    released = threading.Event()
    started: list[None] = []

    def blocked() -> Iterator[bytes]:
        started.append(None)
        released.wait(60)
        yield b"x"

    loop = asyncio.get_running_loop()
    try:
        async with Engine(quick()) as engine:
            calls = [asyncio.create_task(engine.run("echo", {"data": blocked()})) for _ in range(40)]
            async with asyncio.timeout(20):
                await wait_until(lambda: len(started) == len(calls))
                assert (await engine.run("echo", {"data": iter([b"a", b"b"])})).data == b"ab"
        async with asyncio.timeout(20):
            errors = await asyncio.gather(*calls, return_exceptions=True)
            await loop.shutdown_default_executor()
        assert {error.code for error in errors if isinstance(error, CartdeckError)} == {Code.ABORTED}
    finally:
        released.set()


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Odd(), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_source_raises_fails_its_call_at_once(
    engine: Engine, error: BaseException, is_async: bool
) -> None:
    def parts() -> Iterator[bytes]:
        yield b"a"
        raise error

    async def async_parts() -> AsyncIterator[bytes]:
        yield b"a"
        raise error

    found = await code_of(engine.run("echo", {"data": async_parts() if is_async else parts()}, timeout_s=20))
    assert (found.code, found.argument) == (Code.BAD_ARGUMENT, "data")
    assert type(error).__name__ in str(found)


async def test_collecting_behind_a_window_that_had_filled_goes_on_at_once(
    quick: Callable[..., Settings], wait_until: Callable[..., Any]
) -> None:
    async with (
        Engine(quick(health={"heartbeat_s": 60})) as engine,
        engine.call("emit", {"count": 20}, timeout_s=20) as call,
    ):
        await wait_until(lambda: call.reader_since_s(engine.clock.now_s) is not None)
        assert len((await call.collect()).data) == 20 * 262_144


async def test_more_streams_than_the_cartridge_takes_fail_that_call_alone(
    quick: Callable[..., Settings], hostile: Callable[[str], str], wait_until: Callable[..., Any]
) -> None:
    hostile("one-stream")
    text = "x" * 100_000
    async with Engine(quick()) as engine:
        arguments = {"cap": "cap:echo", "data": text, "arguments": {"a": text}}
        error = await code_of(engine.run("cap:relay;one-stream", arguments, timeout_s=20))
        assert error.code is Code.UNSUPPORTED
        (session,) = engine.pool.sessions
        await wait_until(lambda: session.open_requests == 0)
        await engine.run("cap:echo;one-stream", {"data": b"x"}, timeout_s=20)
        assert engine.pool.sessions == [session]


async def test_64_calls_at_once_are_all_right(engine: Engine) -> None:
    texts = [f"call {number}" for number in range(64)]
    results = await asyncio.gather(*(engine.run("echo", {"data": text}, timeout_s=20) for text in texts))
    assert [result.text for result in results] == texts


async def test_a_call_outside_of_its_engine_is_refused(quick: Callable[..., Settings]) -> None:
    engine = Engine(quick())
    assert (await code_of(engine.run("echo", {"data": b""}))).code is Code.ABORTED
    async with engine:
        pass
    assert (await code_of(engine.run("echo", {"data": b""}))).code is Code.ABORTED


async def test_closing_the_engine_ends_its_calls(quick: Callable[..., Settings], nothing_left: None) -> None:
    async with Engine(quick()) as engine:
        await engine.run("echo", {"data": b""})
        task = asyncio.create_task(engine.run("misbehave", {"action": "stall"}))
        queued = asyncio.create_task(engine.run("work", {"steps": 1000}))
        await asyncio.sleep(0.1)
    assert (await code_of(task)).code is Code.ABORTED
    assert (await code_of(queued)).code is Code.ABORTED


async def test_who_closes_the_engine_a_second_time_waits_for_the_same_end(
    quick: Callable[..., Settings], nothing_left: None
) -> None:
    engine = await Engine(quick()).__aenter__()
    async with engine.call("misbehave", {"action": "hold-loop", "seconds": 60}):
        [session] = engine.pool.sessions
        first = asyncio.create_task(engine.close())
        second = asyncio.create_task(engine.close())
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert session.process is not None
        assert not session.process.is_running
        await asyncio.gather(first, second)
    await engine.close()


async def test_a_clock_that_cannot_be_looked_at_stops_no_other(
    quick: Callable[..., Settings], nothing_left: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(_now_s: float) -> None:
        raise ArithmeticError("a fault in one session's look")

    async with Engine(quick(call={"silence_s": 0.6, "tick_s": 0.05})) as engine:
        await engine.load("models", timeout_s=20)
        [first] = engine.pool.sessions
        first.tick = fault
        with pytest.raises(CartdeckError) as caught:
            await engine.run("misbehave", {"action": "stall"}, timeout_s=20)
        assert caught.value.code is Code.TIMED_OUT
        assert "gave no sign" in str(caught.value)
    assert "a fault in one session's look" in caplog.text


async def test_one_error_of_many_calls_does_not_gather_their_frames(engine: Engine) -> None:
    calls = [engine.call("misbehave", {"action": "stall"}) for _ in range(5)]
    for call in calls:
        await call.__aenter__()
    await engine.load("echo", timeout_s=20)
    [session] = [one for one in engine.pool.sessions if one.key.cartridge == "echo"]
    assert session.process is not None
    session.process.kill()
    depths: list[int] = []
    for call in calls * 2:
        with pytest.raises(CartdeckError) as caught:
            [_ async for _ in call]
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1, depths


async def test_a_result_before_the_end_is_a_mistake_of_the_caller(engine: Engine) -> None:
    async with engine.call("misbehave", {"action": "stall"}) as call:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = call.result


async def test_caps_and_cartridges_are_listed(engine: Engine) -> None:
    caps = {(entry.cartridge, entry.definition.alias) for entry in engine.caps()}
    assert ("echo", "work") in caps
    assert ("echo", "identity") not in caps
    await engine.run("echo", {"data": b""})
    echo = next(one for one in engine.cartridges() if one.cartridge.name == "echo")
    assert [one.state for one in echo.sessions] == ["ready"]
    assert echo.sessions[0].pid == engine.pool.sessions[0].process.pid
