"""Streams between steps: from the first byte on, with credit, in flat memory, and never waiting in a ring."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck.plans import Items, PlanRun, StepState, run_plan
from cartdeck.plans.spool import END, NOTHING, WINDOW_BYTES, Budget, Spool
from cartdeck_protocol.errors import Code, failure

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


async def test_the_second_step_has_its_first_byte_before_the_first_sent_its_last(
    milled: Engine, tmp_path: Path
) -> None:
    # gate sends its last byte only when touch has seen its first: without streaming the two would wait for ever
    marker = str(tmp_path / "marker")
    plan = f'() -> gate -> x\ngate.marker = "{marker}"\nx -> touch -> y\ntouch.marker = "{marker}"'
    result = await run_plan(milled, plan + "\ngate {timeout_s=30}")
    assert result.only.data == b"first last"


async def test_a_long_chain_streams_from_end_to_end(milled: Engine, tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    chain = "\n".join(f"e{i} echo\nx{i} -> e{i} -> x{i + 1}" for i in range(20))
    text = f'{chain}\n() -> gate -> x0\ngate.marker = "{marker}"\ngate {{timeout_s=30}}\n'
    # what echo gives says nothing of its kind, so touch comes first
    text = text.replace("x0\ngate.", "g\ngate.", 1) + f'g -> touch -> x0\ntouch.marker = "{marker}"'
    assert (await run_plan(milled, text)).only.data == b"first last"


async def test_a_writer_waits_for_a_slow_reader_and_nothing_goes_to_the_disk(milled: Engine) -> None:
    plan = "() -> emit -> x\nemit.count = 128\nx -> echo -> y\ny -> sink -> z\nsink.interval = 0.001"
    async with PlanRun(milled, plan, memory_bytes=16 * MIB) as run:
        result = await run.collect()
    assert result.only.json()["bytes"] == 128 * 256 * 1024
    assert run.spilled == {}


async def test_a_value_with_a_slow_and_a_fast_reader_is_kept_once_and_spilled(milled: Engine) -> None:
    plan = """
() -> emit -> x
emit.count = 96
x -> fast -> f
fast sink
x -> slow -> s
slow sink
slow.interval = 0.015
"""
    async with PlanRun(milled, plan, memory_bytes=2 * MIB) as run:
        result = await run.collect()
    assert {name: output.json()["bytes"] for name, output in result.outputs.items()} == dict.fromkeys("fs", 96 * 2**18)
    assert run.spilled["x"] > 0


async def test_what_a_step_without_a_place_is_to_read_goes_to_the_disk_and_its_giver_runs_on(
    quick: Callable[..., Settings], mill: Callable[..., None], nothing_left: None, tmp_path: Path
) -> None:
    mill(1)
    marker = tmp_path / "marker"
    marker.touch()
    text = "\n".join([
        f'one touch\nx -> one -> y\none.marker = "{marker}"',
        f'two touch\ny -> two -> z\ntwo.marker = "{marker}"',
    ])  # fmt: skip
    async with (
        Engine(quick()) as engine,
        PlanRun(engine, "x media:gated\n" + text, {"x": b"\7" * (24 * MIB)}, memory_bytes=MIB) as run,
    ):
        result = await run.collect()
    assert result.only.data == b"\7" * (24 * MIB)
    assert run.spilled["y"] > 0


async def test_maps_on_one_cartridge_with_one_place_do_not_wait_for_each_other(
    quick: Callable[..., Settings], mill: Callable[..., None], nothing_left: None
) -> None:
    mill(1)
    plan = (
        "page -> split -> a\na -> shout -> b\nb -> twice -> c\ntwice repeat\nc -> join -> d\nd -> last -> e\nlast shout"
    )
    page = " ".join(f"w{number}" for number in range(60))
    async with Engine(quick()) as engine:
        result = await run_plan(engine, plan, {"page": page})
    assert result.only.text == " ".join(f"W{number}W{number}" for number in range(60))


async def test_two_ways_of_unequal_speed_from_one_value_do_not_stop_each_other(milled: Engine) -> None:
    plan = """
() -> emit-items -> x
emit-items.count = 2000
emit-items.size = 4096
x -> left -> l
left identity
x -> right -> r
right identity
r -> slow -> s
slow identity
l -> a -> n
a sink
s -> b -> m
b sink
"""
    result = await run_plan(milled, plan, memory_bytes=MIB)
    assert len(result.output("n").items) == len(result.output("m").items) == 2000
    del result


async def test_an_output_that_is_larger_than_memory_is_read_from_the_disk(milled: Engine) -> None:
    result = await run_plan(milled, "() -> emit -> x\nemit.count = 40", memory_bytes=MIB)
    assert len(result.only.data) == 40 * 256 * 1024
    assert len(result.only.data) == 40 * 256 * 1024  # again


async def test_a_step_that_reads_a_part_ends_and_the_rest_is_let_go(milled: Engine) -> None:
    plan = "() -> emit -> x\nemit.count = 60\nx -> bad -> y\nbad echo\nbad {timeout_s=0.05}\nx -> sink -> z"
    async with PlanRun(milled, plan, on_error="absent") as run:
        result = await run.collect()
    assert result.output("z").json()["bytes"] == 60 * 256 * 1024
    assert result.steps["bad"].state in (StepState.FAILED, StepState.DONE)


# -- the spool itself


async def test_a_spool_gives_each_reader_every_entry_in_order() -> None:
    budget = Budget(100_000)
    spool = Spool(budget)
    one, other = spool.reader(keeps=False), spool.reader(keeps=True)
    entries: list[Any] = [bytes([number % 256]) * 1000 for number in range(300)]
    for entry in entries:
        spool.put(entry, len(entry))
    assert spool.spilled > 0
    assert budget.used_bytes <= budget.size_bytes
    assert one.take() == entries[0]
    spool.end()
    assert await one.rest() == entries[1:]
    assert await other.rest() == entries
    other.rewind()
    assert await other.rest() == entries
    fork = other.fork()
    assert await fork.rest() == entries
    for reader in (one, other, fork):
        reader.close()
    assert budget.used_bytes == 0


async def test_entries_of_any_kind_come_back_from_the_file() -> None:
    spool = Spool(Budget(0))
    reader = spool.reader(keeps=False)
    entries: list[Any] = [{"a": [1, 2.5, None, "é"]}, "text", b"\0", 2**80, Path("/x"), [], *(b"z" * 9000,) * 4]
    for entry in entries:
        spool.put(entry, 8192)
    spool.end()
    assert await reader.rest() == entries


async def test_only_readers_that_run_hold_a_writer_back_and_the_fastest_counts() -> None:
    spool = Spool(Budget(64 * MIB))
    fast, slow = spool.reader(keeps=False), spool.reader(keeps=False)
    for _ in range(3):
        spool.put(b"x" * WINDOW_BYTES, WINDOW_BYTES)
    assert not spool.is_full
    slow.is_running = True
    assert spool.is_full
    await spool.room(0.01)  # it gives up waiting: whoever sends must be read on
    fast.is_running = True
    while fast.take() is not NOTHING:
        pass
    assert not spool.is_full
    fast.close()
    assert spool.is_full
    slow.stand()
    assert not spool.is_full


async def test_a_spool_that_fails_tells_its_readers_behind_what_came() -> None:
    spool = Spool(Budget(MIB))
    reader = spool.reader(keeps=False)
    spool.put(b"a", 1)
    spool.fail(failure(Code.CANCELLED, "over"))
    spool.end()
    assert reader.take() == b"a"
    with pytest.raises(Exception, match="over"):
        reader.take()


async def test_a_spool_made_of_a_list_costs_nothing_and_ends_at_once() -> None:
    budget = Budget(0)
    spool = Spool.of(["a", "b"], budget)
    reader = spool.reader(keeps=False)
    assert (reader.take(), reader.take(), reader.take()) == ("a", "b", END)
    assert budget.used_bytes == 0


async def test_a_map_whose_reader_is_slow_begins_no_more_calls(milled: Engine, wait_until: Callable[..., Any]) -> None:
    items = [bytes([number]) * 65536 for number in range(200)]
    run = PlanRun(milled, "x -> e -> y\ne cap:echo;test\ne {at_once=4}", {"x": Items(items)})
    async with run:
        entries = run.follow("y")
        assert await anext(entries) == items[0]
        step = run.report.steps["e"]
        await wait_until(lambda: step.tries >= WINDOW_BYTES // 65536)
        await asyncio.sleep(0.1)  # time in which all would be made
        assert step.tries < 60
        assert [entry async for entry in entries] == items[1:]
        assert (await run.collect()).only.items == items
