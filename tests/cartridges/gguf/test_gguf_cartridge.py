"""The cartridge as its callers meet it: through an engine, in its own process, with the models cartridge beside it."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cartdeck import Data, End, Engine, Log, Progress, Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
Told = Callable[[], list[list[dict[str, Any]]]]
T = TypeVar("T")
CAP = "cap:generate-text;gguf"
LIMIT_S = 100.0


def with_engine(use: Callable[[Engine], Awaitable[T]]) -> T:
    """What `use(engine)` gives, in a loop of its own that must end in time."""

    async def run() -> T:
        async with asyncio.timeout(LIMIT_S), Engine(Settings()) as engine:
            return await use(engine)

    return asyncio.run(run())


def arguments_for(path: Path, prompt: str = "The capital of France is", **changes: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return {"model": str(path), "prompt": prompt, "temperature": 0, "max-tokens": 8, "threads": 1, **named}


async def events_of(engine: Engine, arguments: dict[str, Any]) -> list[Any]:
    async with engine.call(CAP, arguments) as call:
        return [event async for event in call]


def text_of(events: list[Any]) -> str:
    return b"".join(event.value for event in events if isinstance(event, Data)).decode()


async def error_of(engine: Engine, arguments: dict[str, Any], cap: str = CAP) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        await engine.run(cap, arguments)
    return caught.value


def test_a_call_has_three_phases_and_says_what_made_its_text(real_model: Path, told: Told) -> None:
    size_bytes = real_model.stat().st_size

    async def use(engine: Engine) -> None:
        arguments = arguments_for(real_model, context_size=512, max_tokens=40)
        first, second = await events_of(engine, arguments), await events_of(engine, arguments)
        assert text_of(first).startswith(" Paris.\n\nThe United States has")
        assert text_of(second) == text_of(first)
        steps = [event for event in first if isinstance(event, Progress)]
        fractions = [step.fraction for step in steps]
        assert fractions == sorted(fractions)
        assert (steps[-1].phase, steps[-1].work, steps[-1].total) == ("inference", 40, 40)
        check_provenance(first[-1], real_model)

    def check_progress(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
        loads, _, tokens = ([one for one in first if one["phase"] == name] for name in ("load", "prompt", "inference"))
        assert {"load", "prompt", "inference"} <= {one["phase"] for one in first}
        assert all(0.25 <= one["progress"] <= 0.35 for one in loads)
        assert loads[-1]["work"] == loads[-1]["total"] == size_bytes
        assert all(0.35 <= one["progress"] <= 0.95 for one in tokens)
        assert 2 <= len(tokens) <= 21
        assert tokens[-1]["work"] == tokens[-1]["total"] == 40
        (start,) = {one["progress"] for one in second if one["phase"] == "prompt"}
        assert start == 0.35
        assert "load" not in {one["phase"] for one in second}

    def check_provenance(end: Any, path: Path) -> None:
        assert isinstance(end, End)
        made = end.provenance
        assert end.progress == 1.0
        assert made["model"]["spec"] == str(path)
        assert made["cartridge"]["name"] == "gguf"
        assert made["engine"]["library"] == "llama-cpp-python"
        assert (made["device"], made["dtype"], made["finish_reason"]) == ("cpu", "Q4_1", "length")
        assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "cached_tokens": 0}
        assert made["settings"] == {"context_size": 512, "threads": 1}
        assert 0 < made["timing"]["first_token_s"] < made["timing"]["total_s"]
        assert made["timing"]["load_s"] > 0
        assert isinstance(made["seed"], int)

    with_engine(use)
    check_progress(*told())


def test_a_seed_gives_the_same_text_again_and_the_one_drawn_is_told(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    async def use(engine: Engine) -> None:
        drawn = await engine.run(CAP, arguments_for(path, temperature=1, max_tokens=20))
        again = await engine.run(CAP, arguments_for(path, temperature=1, max_tokens=20, seed=drawn.provenance["seed"]))
        assert again.text == drawn.text
        assert drawn.text != (await engine.run(CAP, arguments_for(path, temperature=1, max_tokens=20))).text

    with_engine(use)


def test_eight_calls_at_once_are_computed_together_and_all_right(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        wanted = arguments_for(real_model, context_size=512)
        await engine.run(CAP, wanted)
        everything = await asyncio.gather(*(events_of(engine, wanted) for _ in range(8)))
        assert {text_of(events) for events in everything} == {" Paris.\n\nThe United States has"}
        assert any(events[-1].provenance["batched"] for events in everything)

    with_engine(use)


def test_calls_that_do_not_fit_the_context_together_wait_and_know_their_place(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        wanted = arguments_for(real_model, context_size=256, max_tokens=120)
        await engine.run(CAP, wanted)
        everything = await asyncio.gather(*(events_of(engine, wanted) for _ in range(5)))
        assert len({text_of(events) for events in everything}) >= 1
        assert all(isinstance(events[-1], End) for events in everything)
        queued = [event for events in everything for event in events if getattr(event, "phase", None) == "queue"]
        assert any("before this one" in event.message for event in queued)
        assert all(event.fraction == 0.35 for event in queued)

    with_engine(use)


def test_the_first_calls_of_a_process_share_one_load(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    async def use(engine: Engine) -> None:
        results = await asyncio.gather(*(engine.run(CAP, arguments_for(path)) for _ in range(4)))
        assert len({result.text for result in results}) == 1
        loads = [result.provenance["timing"]["load_s"] for result in results]
        assert sum(seconds > 0 for seconds in loads) == 1

    with_engine(use)


def test_a_call_is_cancelled_while_it_waits_and_while_it_is_made(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        long = arguments_for(real_model, "word " * 1500, context_size=4096, max_tokens=2000)
        short = arguments_for(real_model, context_size=4096)
        await engine.run(CAP, short)
        async with engine.call(CAP, long) as running:
            await until(running, "prompt")
            async with engine.call(CAP, long) as waiting:
                await until(waiting, "queue")
                started = time.monotonic()
                waiting.cancel("no longer wanted")
                assert await code_of(waiting) is Code.CANCELLED
            running.cancel("no longer wanted")
            assert await code_of(running) is Code.CANCELLED
            assert (await engine.run(CAP, short)).text == " Paris.\n\nThe United States has"
            assert time.monotonic() - started < 20.0  # the long texts take half a minute each

    with_engine(use)


def test_a_call_is_cancelled_while_it_loads_and_the_next_one_loads_anew(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments = arguments_for(real_model, context_size=512)
        async with engine.call(CAP, {**arguments, "max-tokens": 400}) as call:
            await until(call, "load", "prompt", "inference")  # the first may be past when this process looks
            call.cancel("no longer wanted")
            assert await code_of(call) is Code.CANCELLED
        assert (await engine.run(CAP, arguments)).text == " Paris.\n\nThe United States has"

    with_engine(use)


def test_a_killed_process_fails_its_call_at_once_and_the_next_call_works(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments = arguments_for(real_model, context_size=512)
        await engine.run(CAP, arguments)
        async with engine.call(CAP, {**arguments, "max-tokens": 400}) as call:
            await until(call, "inference")
            started = time.monotonic()
            os.kill(gguf_process(engine), signal.SIGKILL)
            error = await failure_of(call)
        assert time.monotonic() - started < 20.0  # a second, on a machine that has one
        assert error.code is Code.CARTRIDGE_DIED
        assert "SIGKILL" in str(error)
        assert "llama.cpp info" in repr(error.details)
        assert (await engine.run(CAP, arguments)).text == " Paris.\n\nThe United States has"

    with_engine(use)


def test_a_model_file_that_is_cut_while_it_is_mapped_is_a_typed_death(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()

    async def use(engine: Engine) -> None:
        await engine.run(CAP, arguments_for(path))
        os.truncate(path, 0)
        error = await error_of(engine, arguments_for(path))
        assert error.code is Code.CARTRIDGE_DIED
        assert "SIGBUS" in str(error)
        path.write_bytes(whole)
        await engine.run(CAP, arguments_for(path))

    with_engine(use)


def gguf_process(engine: Engine) -> int:
    return next(session.process.pid for session in engine.pool.sessions if session.key.cartridge == "gguf")


async def until(call: Any, *phases: str) -> None:
    """Reads the call's events up to the first one of one of the phases."""
    async for event in call:
        if getattr(event, "phase", None) in phases:
            return
    raise AssertionError(f"the call ended before its phase {phases[0]}")


async def failure_of(call: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        async for _ in call:
            pass
    return caught.value


async def code_of(call: Any) -> Code:
    return (await failure_of(call)).code


def test_what_is_no_model_is_a_typed_error_and_the_next_call_works(tmp_path: Path, write_gguf: WriteGguf) -> None:
    html = tmp_path / "page.gguf"
    html.write_text("<html><body>Not found</body></html>")
    broken = write_gguf("zzz.gguf", **{"general.architecture": "zzz"})
    cut = write_gguf("cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-1])
    good = write_gguf()

    async def use(engine: Engine) -> None:
        for cap in (CAP, "cap:model-info;gguf"):
            codes = [(await error_of(engine, only_known(cap, path), cap)).code for path in (html, tmp_path, cut)]
            assert codes == [Code.BAD_MODEL_FILE, Code.BAD_MODEL_FILE, Code.MODEL_TRUNCATED]
            missing = await error_of(engine, only_known(cap, tmp_path / "none.gguf"), cap)
            assert missing.code in (Code.FILE_NOT_FOUND, Code.MODEL_NOT_FOUND)
        unknown = await error_of(engine, arguments_for(broken))
        assert unknown.code is Code.UNSUPPORTED_ARCHITECTURE
        assert unknown.details["architecture"] == "zzz"
        assert (await engine.run(CAP, arguments_for(good))).provenance["usage"]["completion_tokens"] <= 8

    def only_known(cap: str, path: Path) -> dict[str, Any]:
        return arguments_for(path) if cap == CAP else {"model": str(path)}

    with_engine(use)


def test_a_folder_with_one_model_stands_for_it_and_any_other_says_what_it_holds(
    tmp_path: Path, write_gguf: WriteGguf
) -> None:
    content = write_gguf().read_bytes()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("About it.")

    async def use(engine: Engine) -> None:
        none = await error_of(engine, arguments_for(folder))
        assert (none.code, "a folder without a GGUF file" in none.message) == (Code.BAD_MODEL_FILE, True)
        (folder / "one.gguf").write_bytes(content)
        events = await events_of(engine, arguments_for(folder))
        sizes = {event.total for event in events if isinstance(event, Progress) and event.phase == "load"}
        assert sizes <= {None, len(content) + len("About it.")}
        assert isinstance(events[-1], End)
        (folder / "two.gguf").write_bytes(content)
        several = await error_of(engine, {"model": str(folder)}, "cap:model-info;gguf")
        assert (several.code, several.details["files"]) == (Code.BAD_MODEL_FILE, ["one.gguf", "two.gguf"])
        assert "one.gguf, two.gguf" in several.message

    with_engine(use)


def test_layers_for_a_gpu_that_is_not_there_are_a_warning_to_the_caller(write_gguf: WriteGguf) -> None:
    async def use(engine: Engine) -> None:
        events = await events_of(engine, arguments_for(write_gguf(), gpu_layers=1))
        warnings = [event.message for event in events if isinstance(event, Log) and event.level == "warning"]
        on_gpu = isinstance(events[-1], End) and events[-1].provenance["device"] == "gpu"
        assert on_gpu or any("gpu-layers 1 has no effect" in line for line in warnings)

    with_engine(use)


def test_tokens_of_a_prompt_are_told_once_they_are_counted(real_model: Path, told: Told) -> None:
    async def use(engine: Engine) -> None:
        await engine.run(CAP, arguments_for(real_model, "word " * 300, context_size=512))

    with_engine(use)
    (call,) = told()
    counts = [(one.get("work"), one.get("total")) for one in call if one["phase"] == "prompt"]
    assert counts
    assert all(work is total is None or (work is not None and 0 <= work <= (total or 0)) for work, total in counts)
    assert counts[-1][1] == 301


def test_a_model_that_was_mended_loads_in_the_process_that_refused_it(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])

    async def use(engine: Engine) -> None:
        assert (await error_of(engine, arguments_for(path))).code is Code.MODEL_TRUNCATED
        path.write_bytes(whole)
        assert (await engine.run(CAP, arguments_for(path))).provenance["finish_reason"] in ("stop", "length")

    with_engine(use)


def test_errors_of_a_request_leave_the_model_in_place(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    async def use(engine: Engine) -> None:
        await engine.run(CAP, arguments_for(path))
        overflow = await error_of(engine, arguments_for(path, "a" * 600))
        assert overflow.code is Code.CONTEXT_OVERFLOW
        assert (await error_of(engine, arguments_for(path, stop='[""]'))).argument == "stop"
        after = await engine.run(CAP, arguments_for(path))
        assert after.provenance["timing"]["load_s"] == 0

    with_engine(use)


def test_model_info_reads_the_header_alone(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        result = await engine.run("cap:model-info;gguf", {"model": str(real_model)})
        record = json.loads(result.text)
        assert (record["architecture"], record["parameters"]) == ("llama", 134_515_008)
        assert (record["context_length"], record["quantization"]["name"]) == (8192, "Q4_1")
        assert record["memory"]["total_bytes"] > record["files"][0]["size_bytes"]
        small = await engine.run("cap:model-info;gguf", {"model": str(real_model), "context-size": 512})
        assert json.loads(small.text)["memory"]["total_bytes"] < record["memory"]["total_bytes"]
        assert result.provenance["engine"]["version"] is None  # nothing was loaded

    with_engine(use)
