"""A process that breaks the wire, at its start and inside a call: the right error, and the right blast radius."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Code, End, Engine, Progress, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_tasks_left")]


@pytest.mark.parametrize(
    ("moment", "step_s", "code", "words"),
    [
        ("half hello", 1.0, Code.START_FAILED, "gave no hello"),
        ("closed output", 15.0, Code.START_FAILED, "closed its output and went on before it was ready"),
        ("no identity", 2.5, Code.START_FAILED, "gave no identity"),  # time enough to come as far as that
        ("identity under another id", 2.5, Code.START_FAILED, "gave no identity"),
        ("identity refused", 15.0, Code.IDENTITY_FAILED, "OUT_OF_MEMORY: no room for 64 bytes"),
    ],
)
async def test_a_start_that_stops_half_way_says_where(
    quick: Callable[..., Settings],
    foreign: Callable[..., str],
    failure_of: Any,
    moment: str,
    step_s: float,
    code: Code,
    words: str,
) -> None:
    cap = foreign(moment)
    async with Engine(quick(start={"step_s": step_s})) as engine:
        error = await failure_of(engine.run(cap, {"data": "x"}), limit_s=20.0)
        assert error.code is code
        assert words in str(error)


async def test_a_failed_start_takes_its_grandchild_along(
    quick: Callable[..., Settings],
    foreign: Callable[..., str],
    failure_of: Any,
    wait_until: Any,
    runs: Callable[[int], bool],
    tmp_path: Path,
) -> None:
    cap = foreign("grandchild and exit")
    async with Engine(quick()) as engine:
        assert (await failure_of(engine.run(cap, {"data": "x"}))).code is Code.START_FAILED
        pid = int((tmp_path / "cartridges" / "foreign" / "grandchild").read_text("ascii"))
        await wait_until(lambda: not runs(pid))


async def both(engine: Engine, cap: str, how: str, failure_of: Any) -> tuple[Any, asyncio.Task[Any]]:
    """The error of a call that goes wrong, and another call that is open at the same process meanwhile."""
    await engine.run(cap, {"data": "first"}, timeout_s=30)
    other = asyncio.create_task(engine.run(cap, {"how": "silence"}, timeout_s=20))
    await asyncio.sleep(0)
    assert engine.pool.sessions[0].open_requests == 1
    return await failure_of(engine.run(cap, {"how": how}, timeout_s=20), limit_s=20.0), other


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("second start", Code.PROTOCOL_VIOLATION, "stream 0"),
        ("wrong index", Code.PROTOCOL_VIOLATION, "5"),
        ("wrong count", Code.PROTOCOL_VIOLATION, "9"),
        ("chunk after end", Code.PROTOCOL_VIOLATION, "stream 0"),
        ("beyond window", Code.CREDIT_VIOLATION, ""),
        ("endless item", Code.FRAME_TOO_LARGE, "larger than 100000 bytes"),
        ("end with open stream", Code.PROTOCOL_VIOLATION, "open"),
    ],
)
async def test_damage_in_one_call_ends_that_call_alone(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any, how: str, code: Code, words: str
) -> None:
    cap = foreign()
    async with Engine(quick(wire={"max_item_bytes": 100_000})) as engine:
        error, other = await both(engine, cap, how, failure_of)
        assert error.code is code
        assert words in str(error)
        [session] = engine.pool.sessions
        assert (await engine.run(cap, {"data": "on"}, timeout_s=30)).text == "on"
        assert not other.done()
        other.cancel()
        assert engine.pool.sessions == [session]


@pytest.mark.parametrize(
    "how",
    [
        "unknown kind", "second hello", "even request id", "lower request id", "boolean for a number",
    ],
)  # fmt: skip  # a list to scan
async def test_damage_of_the_connection_ends_all_its_calls_and_the_process_is_replaced(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any, how: str
) -> None:
    cap = foreign()
    async with Engine(quick()) as engine:
        error, other = await both(engine, cap, how, failure_of)
        [session] = engine.pool.sessions or [None]
        assert error.code is Code.PROTOCOL_VIOLATION
        assert (await failure_of(other)).code is Code.PROTOCOL_VIOLATION
        assert (await engine.run(cap, {"data": "new"}, timeout_s=30)).text == "new"
        assert engine.pool.sessions != [session]


async def test_a_second_end_is_counted_and_harms_nobody(
    quick: Callable[..., Settings], foreign: Callable[..., str]
) -> None:
    cap = foreign()
    async with Engine(quick()) as engine:
        assert (await engine.run(cap, {"how": "end twice"}, timeout_s=30)).text == "once"
        [session] = engine.pool.sessions
        assert (await engine.run(cap, {"data": "on"}, timeout_s=30)).text == "on"
        assert engine.pool.sessions == [session]
        assert session.connection.stragglers == 2


async def test_answers_to_requests_that_were_never_made_are_counted_logged_and_harm_nobody(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cap = foreign()
    caplog.set_level(logging.WARNING, "cartdeck.sessions.session")
    async with Engine(quick(call={"silence_s": 0.8, "cancel_s": 5.0, "abandon_s": 10.0})) as engine:
        error = await failure_of(engine.run(cap, {"how": "other ids"}))
        assert error.code is Code.TIMED_OUT
        [session] = engine.pool.sessions
        assert (await engine.run(cap, {"data": "on"}, timeout_s=30)).text == "on"  # behind all that came before
        assert session.connection.strays == 20
        assert sum("never opened" in record.message for record in caplog.records) == 10


async def test_frames_that_come_byte_by_byte_are_whole(
    quick: Callable[..., Settings], foreign: Callable[..., str]
) -> None:
    cap = foreign()
    async with Engine(quick()) as engine:
        assert (await engine.run(cap, {"how": "drip"}, timeout_s=30)).text == "dripped"


async def test_progress_that_is_no_fraction_is_not_shown_and_none_falls(
    quick: Callable[..., Settings], foreign: Callable[..., str]
) -> None:
    cap = foreign()
    async with Engine(quick()) as engine, engine.call(cap, {"how": "odd progress"}, timeout_s=30) as call:
        told = [event async for event in call if isinstance(event, Progress) and event.message.isdecimal()]
    fractions = [event.fraction for event in told]
    assert all(one is not None and 0 <= one <= 1 for one in fractions)
    assert fractions == sorted(fractions)


async def test_the_end_is_never_below_the_progress_before_it(
    quick: Callable[..., Settings], foreign: Callable[..., str]
) -> None:
    cap = foreign()
    async with Engine(quick()) as engine, engine.call(cap, {"how": "low end"}, timeout_s=30) as call:
        *_, told, end = [event async for event in call]
    assert isinstance(told, Progress)
    assert isinstance(end, End)
    assert (told.fraction, end.progress, call.result.progress) == (0.9, 0.9, 0.9)


async def test_a_process_that_falls_silent_and_answers_its_cancel_is_used_again(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any
) -> None:
    cap = foreign()
    async with Engine(quick(call={"silence_s": 0.8, "cancel_s": 5.0, "abandon_s": 10.0})) as engine:
        assert (await failure_of(engine.run(cap, {"how": "silence"}))).code is Code.TIMED_OUT
        [session] = engine.pool.sessions
        assert (await engine.run(cap, {"data": "on"}, timeout_s=30)).text == "on"
        assert engine.pool.sessions == [session]


@pytest.mark.parametrize("how", ["half frame", "stop reading", "ignore cancel"])
async def test_a_process_that_neither_answers_nor_takes_a_cancel_is_replaced(
    quick: Callable[..., Settings], foreign: Callable[..., str], failure_of: Any, how: str
) -> None:
    cap = foreign()
    async with Engine(quick(call={"silence_s": 0.8, "cancel_s": 0.2})) as engine:
        await engine.run(cap, {"data": "first"}, timeout_s=30)
        [session] = engine.pool.sessions
        error = await failure_of(engine.run(cap, {"how": how}))
        assert error.code is Code.TIMED_OUT
        # at once: whoever tries again must not wait for the same silence
        assert (await engine.run(cap, {"data": "new"}, timeout_s=30)).text == "new"
        assert session not in engine.pool.sessions


# -- starts that fail with the first call


async def test_a_model_that_kills_its_process_at_each_load_is_not_started_for_each_caller(
    quick: Callable[..., Settings], foreign: Callable[..., str], tmp_path: Path
) -> None:
    cap = foreign()
    settings = quick(restart={"first_s": 1.0, "longest_s": 10.0})
    async with Engine(settings) as engine:
        errors: list[Any] = []
        for _ in range(10):
            polls = [engine.run(cap, {"how": "die"}, timeout_s=20) for _ in range(5)]
            errors += await asyncio.gather(*polls, return_exceptions=True)
            await asyncio.sleep(0.05)
        starts = len((tmp_path / "cartridges" / "foreign" / "starts").read_text("ascii").split())
        assert starts <= 4
        assert {error.code for error in errors} == {Code.CARTRIDGE_DIED}
        refused = [error for error in errors if "retry_after_s" in error.details]
        assert refused
        assert all("exited with status 1" in str(error) for error in errors)
