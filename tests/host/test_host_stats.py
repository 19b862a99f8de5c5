"""What `stats()` says of real sessions: requests by phase, traffic, restarts with their reasons, the last error."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import cartdeck
from cartdeck import CartdeckError, Code, Engine, EngineStats, SessionStats, Settings

pytestmark = pytest.mark.anyio


def only(stats: EngineStats) -> SessionStats:
    (session,) = stats.sessions
    return session


async def test_an_engine_that_did_nothing_has_no_sessions_and_no_traffic(engine: Engine) -> None:
    stats = engine.stats()
    assert stats.sessions == ()
    assert (stats.starts, stats.restarts, stats.requests) == (0, 0, {})
    assert set(stats.traffic.to_plain().values()) == {0}


async def test_bytes_and_frames_of_a_session_are_counted(engine: Engine) -> None:
    data = b"x" * 300_000
    assert (await engine.run("echo", {"data": data})).data == data
    session = only(engine.stats())
    assert (session.key.cartridge, session.state, session.requests) == ("echo", "ready", {})
    assert session.traffic.read_bytes > len(data)
    assert session.traffic.written_bytes > len(data)
    assert session.traffic.received_frames >= 6  # HELLO, and two answers
    assert session.traffic.opened_requests == 2  # the identity probe, and the call
    assert (session.traffic.stragglers, session.traffic.strays, session.traffic.bad_progress) == (0, 0, 0)
    assert (session.starts, session.restarts, session.last_restarts, session.last_error) == (1, 0, (), None)


async def test_memory_and_cpu_time_are_those_of_the_process(engine: Engine) -> None:
    await engine.run("echo", {"data": b"x"})
    stats = engine.stats()
    session = only(stats)
    assert session.pid is not None
    assert session.pid != os.getpid()
    assert session.rss_bytes is not None
    assert session.rss_bytes > 1024 * 1024
    assert session.cpu_s is not None
    assert session.cpu_s > 0
    assert (stats.rss_bytes, stats.cpu_s) == (session.rss_bytes, session.cpu_s)


async def test_requests_are_counted_by_their_phase(shelf: None, engine: Engine, wait_until: Callable[..., Any]) -> None:
    async with engine.call("hold", {"seconds": 30}), engine.call("hold", {"seconds": 30}):
        assert engine.stats().requests == {"starting": 2}
        await wait_until(lambda: engine.stats().requests == {"holding": 1, "queued": 1})
    await wait_until(lambda: engine.stats().requests == {})


async def test_a_restart_says_why_the_process_before_ended(engine: Engine, wait_until: Callable[..., Any]) -> None:
    await engine.run("echo", {"data": b"x"})
    first = only(engine.stats())
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await wait_until(lambda: only(engine.stats()).state == "ended")
    assert only(engine.stats()).pid is None
    await engine.run("echo", {"data": b"x"})
    await engine.unload()
    await engine.run("echo", {"data": b"x"})
    session = only(engine.stats())
    assert (session.starts, session.restarts, session.failures) == (3, 2, 0)
    assert [one.code for one in session.last_restarts] == ["CARTRIDGE_DIED", "ENDED"]
    assert "SIGKILL" in session.last_restarts[0].message
    assert session.traffic.opened_requests == 6
    assert session.traffic.read_bytes > first.traffic.read_bytes
    assert session.last_error is not None
    assert session.last_error.code is Code.CARTRIDGE_DIED


async def test_the_last_error_is_that_of_the_last_call_that_failed(engine: Engine) -> None:
    with pytest.raises(CartdeckError) as caught:
        await engine.run("misbehave", {"action": "raise"})
    session = only(engine.stats())
    assert session.state == "ready"
    assert session.last_error is not None
    assert (session.last_error.code, session.last_error.message) == (caught.value.code, caught.value.message)
    assert session.last_error.__traceback__ is None  # it keeps no frames of the caller


async def test_an_unloaded_session_is_remembered_and_holds_nothing(engine: Engine) -> None:
    await engine.run("echo", {"data": b"x"})
    await engine.unload()
    stats = engine.stats()
    assert only(stats).state == "ended"
    assert stats.traffic == only(stats).traffic
    assert (stats.rss_bytes, stats.cpu_s) == (0, 0.0)


async def test_many_keys_are_forgotten_but_not_their_sums(
    shelf: None, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cartdeck.pool.history._MOST_KEYS", 2)
    for item in ("a", "b", "c"):
        await engine.run("hold", {"item": item})
        await engine.unload()
    stats = engine.stats()
    assert [json.loads(one.key.instance)["item"] for one in stats.sessions] == ["b", "c"]
    assert stats.starts == 3
    assert stats.traffic.opened_requests == 6


async def test_a_plain_form_is_what_json_takes(engine: Engine) -> None:
    with pytest.raises(CartdeckError):
        await engine.run("misbehave", {"action": "raise"})
    plain = json.loads(json.dumps(engine.stats().to_plain()))
    (session,) = plain["sessions"]
    assert session["cartridge"] == "echo"
    assert session["last_error"]["code"]
    assert plain["opened_requests"] == session["opened_requests"] == 2
    assert plain["uptime_s"] > 0


async def test_a_closed_engine_says_so(quick: Callable[..., Settings]) -> None:
    engine = Engine(quick())
    with pytest.raises(CartdeckError) as caught:
        engine.stats()
    assert caught.value.code is Code.ABORTED


def test_the_blocking_engine_gives_the_same(quick: Callable[..., Settings]) -> None:
    with cartdeck.open(quick()) as engine:
        engine.run("echo", {"data": b"x"})
        assert only(engine.stats()).state == "ready"
