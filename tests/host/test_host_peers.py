"""Peer calls: carried hop by hop, with progress, logs, errors and cancel; cycles and deadlocks refused at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cartdeck import CartdeckError, Code, Engine, Log, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
async def shelves(quick: Callable[..., Settings], shelf: None) -> AsyncIterator[Engine]:
    async with Engine(quick(instances={"limit": 2})) as engine:
        yield engine


async def failure_of(work: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await work
    return caught.value


async def test_a_peers_answer_and_provenance_come_back(engine: Engine) -> None:
    result = await engine.run("relay", {"cap": "cap:echo", "data": "über"}, timeout_s=20)
    assert result.text == "über"
    assert result.provenance == {"peer": {}}


@pytest.mark.parametrize("count", [1, 40])
async def test_a_peers_stream_comes_through_whole(engine: Engine, count: int) -> None:
    arguments = {"cap": "cap:emit", "argument": "", "arguments": {"count": count}}
    result = await engine.run("relay", arguments, timeout_s=30)
    assert result.data == b"".join(bytes((number % 16,)) * 262_144 for number in range(count))


async def test_a_large_argument_of_a_peer_call_is_a_stream(engine: Engine) -> None:
    data = "x" * 5_000_000
    assert (await engine.run("relay", {"cap": "cap:echo", "data": data}, timeout_s=30)).text == data


async def test_a_peers_progress_arrives_mapped_and_never_falls(engine: Engine) -> None:
    arguments = {"cap": "cap:work", "argument": "", "arguments": {"steps": 5, "seconds": 0.02}}
    async with engine.call("relay", arguments, timeout_s=20) as call:
        told = [event async for event in call if isinstance(event, Progress)]
    fractions = [one.fraction for one in told if one.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(0.9)
    assert told[-1].work == 5


async def test_a_peers_log_lines_arrive(engine: Engine) -> None:
    arguments = {"cap": "cap:misbehave", "argument": "", "arguments": {"action": "log-lines", "amount": 2}}
    async with engine.call("relay", arguments, timeout_s=20) as call:
        logs = [event.message async for event in call if isinstance(event, Log)]
    assert logs == ["line 0", "line 1"]


@pytest.mark.parametrize(
    ("cap", "arguments", "code"),
    [
        ("cap:ecko", {}, Code.NO_SUCH_CAP),
        ("cap:misbehave", {"action": "raise"}, Code.HANDLER_FAILED),
        ("cap:work", {"bogus": 1}, Code.UNKNOWN_ARGUMENT),
        ("cap:echo", {}, Code.MISSING_ARGUMENT),
        ("cap:work", {"steps": "many"}, Code.BAD_ARGUMENT),
    ],
)
async def test_a_peers_error_is_the_callers_error(
    engine: Engine, cap: str, arguments: dict[str, Any], code: Code
) -> None:
    error = await failure_of(engine.run("relay", {"cap": cap, "argument": "", "arguments": arguments}, timeout_s=20))
    assert error.code is code


async def test_a_cap_that_calls_itself_through_peers_is_a_cycle(engine: Engine) -> None:
    inner = {"cap": "cap:relay", "argument": "", "arguments": {"cap": "cap:echo", "data": "x"}}
    began = asyncio.get_running_loop().time()
    error = await failure_of(engine.run("relay", inner, timeout_s=20))
    assert error.code is Code.PEER_CYCLE
    assert error.details["chain"] == ["relay on echo", "relay on echo"]
    assert asyncio.get_running_loop().time() - began < 10.0  # at once, and not by its time limit


async def test_two_cartridges_that_call_each_other_are_a_cycle(shelves: Engine) -> None:
    back = {"cap": "cap:pass-on", "arguments": {"item": "a", "cap": "cap:echo"}}
    arguments = {"item": "a", "cap": "cap:relay", "arguments": {"argument": "", **back}}
    error = await failure_of(shelves.run("pass-on", arguments, timeout_s=20))
    assert error.code is Code.PEER_CYCLE
    assert error.details["chain"] == ["pass-on on shelf", "relay on echo", "pass-on on shelf"]


async def test_a_peer_call_that_needs_the_place_its_own_chain_holds_is_a_deadlock(
    quick: Callable[..., Settings], shelf: None
) -> None:
    async with Engine(quick(instances={"limit": 1})) as engine:
        loop = asyncio.get_running_loop()
        for item in ("b", "a"):  # another instance, for which there is no place; the own one, which takes one call
            began = loop.time()
            arguments = {"item": "a", "cap": "cap:hold", "arguments": {"item": item}}
            error = await failure_of(engine.run("pass-on", arguments, timeout_s=20))
            assert error.code is Code.PEER_DEADLOCK
            assert "pass-on on shelf" in str(error)
            assert loop.time() - began < 10.0  # at once, and not by its time limit
        assert json.loads((await engine.run("hold", {"item": "b"}, timeout_s=20)).text)["item"] == "b"


async def test_chains_that_would_wait_for_one_another_do_not(shelves: Engine) -> None:
    """a holds its process and wants b, b holds its own and wants a: one of them is refused, the other gets on."""

    async def cross(own: str, other: str) -> str:
        inner = {"item": other, "cap": "cap:work", "arguments": {"steps": 2}}
        arguments = {"item": own, "cap": "cap:pass-on", "arguments": inner}
        try:
            return (await shelves.run("pass-on", arguments, timeout_s=20)).text
        except CartdeckError as error:
            return str(error.code)

    await asyncio.gather(shelves.load("cap:hold", {"item": "a"}), shelves.load("cap:hold", {"item": "b"}))
    outcomes = await asyncio.gather(cross("a", "b"), cross("b", "a"))
    assert "2 steps done" in outcomes
    assert set(outcomes) <= {"2 steps done", "PEER_DEADLOCK"}


async def test_a_session_that_is_being_unloaded_is_not_waited_for_by_its_own_peer_call(shelves: Engine) -> None:
    await asyncio.gather(shelves.load("cap:hold", {"item": "a"}), shelves.load("cap:hold", {"item": "b"}))
    inner = {"item": "c", "cap": "cap:work", "arguments": {"steps": 2}}
    call = asyncio.create_task(
        shelves.run("pass-on", {"item": "a", "cap": "cap:pass-on", "arguments": inner}, timeout_s=20)
    )
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await shelves.unload("cap:hold", {"item": "a"})
    assert (await call).text == "2 steps done"


async def test_another_place_lets_the_peer_call_through(shelves: Engine) -> None:
    arguments = {"item": "a", "cap": "cap:hold", "arguments": {"item": "b"}}
    result = await shelves.run("pass-on", arguments, timeout_s=20)
    assert json.loads(result.data)["item"] == "b"


async def test_cancel_reaches_a_peer_three_deep(shelves: Engine, wait_until: Callable[..., Any]) -> None:
    deepest = {"argument": "", "cap": "cap:misbehave", "arguments": {"action": "stall"}}
    middle = {"item": "b", "cap": "cap:relay", "arguments": deepest}
    arguments = {"item": "a", "cap": "cap:pass-on", "arguments": middle}
    async with shelves.call("pass-on", arguments, timeout_s=20) as call:
        async for event in call:
            if isinstance(event, Progress) and event.phase == "stalling":
                break
        assert sum(session.open_requests for session in shelves.pool.sessions) == 4
        began = asyncio.get_running_loop().time()
        call.cancel()
        error = await failure_of(call.collect())
    assert error.code is Code.CANCELLED
    await wait_until(lambda: not any(session.open_requests for session in shelves.pool.sessions), limit_s=10.0)
    assert asyncio.get_running_loop().time() - began < 15.0  # and not by its time limit
    assert (await shelves.run("echo", {"data": "on"}, timeout_s=30)).text == "on"


async def test_a_peer_that_dies_fails_its_caller_and_not_the_callers_process(shelves: Engine) -> None:
    arguments = {"item": "a", "cap": "cap:misbehave", "arguments": {"action": "exit", "amount": 3}}
    error = await failure_of(shelves.run("pass-on", arguments, timeout_s=20))
    assert error.code is Code.CARTRIDGE_DIED
    assert "exited with status 3" in str(error)
    states = {session.key.cartridge: session.state.value for session in shelves.pool.sessions}
    assert states == {"shelf": "ready"}


async def test_a_caller_that_dies_takes_its_peer_call_along(shelves: Engine, wait_until: Callable[..., Any]) -> None:
    arguments = {"item": "a", "cap": "cap:misbehave", "arguments": {"action": "stall"}}
    async with shelves.call("pass-on", arguments, timeout_s=20) as call:
        async for event in call:
            if isinstance(event, Progress) and event.phase == "stalling":
                break
        sessions = {session.key.cartridge: session for session in shelves.pool.sessions}
        sessions["shelf"].process.kill()
        error = await failure_of(call.collect())
    assert error.code is Code.CARTRIDGE_DIED
    await wait_until(lambda: sessions["echo"].open_requests == 0)


async def test_a_parent_that_waits_in_a_peer_call_is_not_silent(quick: Callable[..., Settings], shelf: None) -> None:
    settings = quick(call={"silence_s": 0.8}, health={"keepalive_s": 30.0})
    arguments = {"item": "a", "cap": "cap:work", "arguments": {"steps": 12, "seconds": 0.1}}
    async with Engine(settings) as engine:
        assert (await engine.run("pass-on", arguments, timeout_s=20)).text == "12 steps done"


async def test_more_outputs_than_the_calling_cartridge_takes_fail_that_peer_call_alone(
    quick: Callable[..., Settings], hostile: Callable[[str], str], wait_until: Callable[..., Any]
) -> None:
    hostile("two-outputs")
    hostile("one-stream")
    async with Engine(quick()) as engine:
        await engine.run("cap:echo;one-stream", {"data": b"x"}, timeout_s=20)
        await engine.run("cap:echo;two-outputs", {"data": b"x"}, timeout_s=20)
        sessions = list(engine.pool.sessions)
        error = await failure_of(engine.run("cap:echo;one-stream", {"data": b"ask"}, timeout_s=20))
        assert error.code is Code.UNSUPPORTED
        await wait_until(lambda: not any(session.open_requests for session in sessions))
        assert engine.pool.sessions == sessions


async def test_a_provenance_that_fits_no_second_frame_fails_that_peer_call_alone(
    quick: Callable[..., Settings], hostile: Callable[[str], str]
) -> None:
    cap = hostile("full-provenance")
    async with Engine(quick()) as engine:
        assert len((await engine.run(cap, {"data": b"x"}, timeout_s=20)).provenance["a"]) > 65_000
        await engine.run("cap:echo;test", {"data": b"x"}, timeout_s=20)
        sessions = list(engine.pool.sessions)
        error = await failure_of(engine.run("cap:relay;test", {"cap": cap, "data": "x"}, timeout_s=20))
        assert error.code is Code.FRAME_TOO_LARGE
        assert engine.pool.sessions == sessions
