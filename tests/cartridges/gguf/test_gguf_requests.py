"""Requests for text as a caller makes them: several texts, probabilities, texts side by side, loads again and again."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cartdeck import Data, Engine, Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
T = TypeVar("T")
CAP = "cap:generate-text;gguf"
LIMIT_S = 90.0


def with_engine(use: Callable[[Engine], Awaitable[T]]) -> T:
    """What `use(engine)` gives, in a loop of its own that must end in time."""

    async def run() -> T:
        async with asyncio.timeout(LIMIT_S), Engine(Settings()) as engine:
            return await use(engine)

    return asyncio.run(run())


def asked(path: Path, prompt: str = "a", **changes: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return {"model": str(path), "prompt": prompt, "max-tokens": 12, "threads": 1, "seed": 5, **named}


def test_texts_beyond_the_first_come_on_events_with_their_ends(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    async def use(engine: Engine) -> None:
        result = await engine.run(CAP, asked(path, n=3, temperature=1))
        events = result.items_of("events")
        texts = ["".join(one["text"] for one in events if one["type"] == "text" and one["index"] == n) for n in (1, 2)]
        ends = {one["index"]: (one["finish_reason"], one["seed"]) for one in events if one["type"] == "finish"}
        assert set(ends) == {0, 1, 2}
        assert [seed for _, (_, seed) in sorted(ends.items())] == [5, 6, 7]
        assert result.provenance["finish_reason"] == ends[0][0]
        assert result.provenance["usage"]["completion_tokens"] <= 36
        assert all(texts)

    with_engine(use)


def test_probabilities_come_on_events_one_record_a_token(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        wanted = asked(real_model, "The capital of France is", temperature=0, max_tokens=6, context_size=512)
        result = await engine.run(CAP, {**wanted, "top-logprobs": 2})
        records = result.items_of("events")
        assert [one["type"] for one in records] == ["token"] * 6
        assert bytes(byte for one in records for byte in one["bytes"]).decode() == result.text
        for one in records:
            assert math.exp(one["logprob"]) <= 1
            assert one["top"][0]["id"] == one["id"]
            assert one["top"][0]["logprob"] >= one["top"][1]["logprob"]
        json.dumps(records)
        plain = await engine.run(CAP, wanted)
        assert plain.text == result.text
        assert plain.items_of("events") == []

    with_engine(use)


def test_the_usage_is_right_with_a_prefix_that_was_seen_before(real_model: Path) -> None:
    prompt = "The keeper of the lighthouse wrote to his daughter about the storm. " * 12

    async def use(engine: Engine) -> None:
        wanted = asked(real_model, prompt, temperature=0, max_tokens=4, context_size=512)
        first, second = await engine.run(CAP, wanted), await engine.run(CAP, wanted)
        assert first.provenance["usage"]["cached_tokens"] == 0
        assert second.provenance["usage"] == {**first.provenance["usage"], "cached_tokens": 128}
        assert second.text == first.text

    with_engine(use)


def test_a_deterministic_text_is_the_same_alone_and_beside_others(real_model: Path) -> None:
    async def use(engine: Engine) -> None:
        wanted = asked(real_model, "Once upon a time", temperature=0.9, deterministic=True, context_size=2048)
        alone = await engine.run(CAP, wanted)
        others = [engine.run(CAP, asked(real_model, f"{n} birds", context_size=2048, max_tokens=40)) for n in range(4)]
        *beside, together = await asyncio.gather(*others, engine.run(CAP, wanted))
        assert together.text == alone.text
        assert together.provenance["batched"] is False
        assert any(one.provenance["batched"] for one in beside)

    with_engine(use)


def test_a_setting_that_makes_no_sense_is_named_to_the_caller(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    wrong: dict[str, Any] = {
        "max_tokens": 0, "temperature": -1, "top_p": 1.5, "n": 0, "top_logprobs": 99, "frequency_penalty": 3,
        "logit_bias": {"x": 1}, "seed": -1, "stop": [""],
    }  # fmt: skip

    async def use(engine: Engine) -> None:
        for name, value in wrong.items():
            with pytest.raises(CartdeckError) as caught:
                await engine.run(CAP, asked(path, **{name: value}))
            assert caught.value.code is Code.BAD_ARGUMENT
            assert caught.value.argument == name.replace("_", "-")
        with pytest.raises(CartdeckError) as caught:
            await engine.run(CAP, asked(path, logit_bias={"9999": 1}))
        assert "9999" in str(caught.value)
        result = await engine.run(CAP, {**asked(path), "max-tokens": None})
        assert result.provenance["finish_reason"] in ("stop", "length")

    with_engine(use)


def test_a_call_that_nobody_reads_does_not_hold_the_others_up(write_gguf: WriteGguf) -> None:
    path = write_gguf(**{"llama.context_length": 65_536})
    never_ends = {"2": -100}  # the token that ends a text

    async def use(engine: Engine) -> None:
        wanted = asked(path, temperature=1, max_tokens=30_000, logit_bias=never_ends)
        async with engine.call(CAP, wanted) as unread:
            async for event in unread:
                if isinstance(event, Data):
                    break  # and no more is read
            started = time.monotonic()
            other = await engine.run(CAP, asked(path, "b", max_tokens=50, temperature=1, logit_bias=never_ends))
            assert other.provenance["usage"]["completion_tokens"] == 50
            assert time.monotonic() - started < 20

    with_engine(use)


def test_a_model_is_loaded_and_unloaded_many_times_and_the_host_does_not_grow(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    async def use(engine: Engine) -> None:
        async def cycle() -> None:
            assert (await engine.run(CAP, asked(path))).provenance["timing"]["load_s"] > 0
            assert await engine.unload(CAP, asked(path)) >= 1

        for _ in range(2):
            await cycle()
        grown: list[int] = []
        while len(grown) < 3 and (not grown or min(grown) >= 8 * 1024 * 1024):
            before = resident_bytes()
            for _ in range(3):
                await cycle()
            grown.append(resident_bytes() - before)
        assert min(grown) < 8 * 1024 * 1024  # what is lost each time is lost in each round

    with_engine(use)


def test_the_texts_of_a_deterministic_request_are_those_of_its_seeds(write_gguf: WriteGguf) -> None:
    path = write_gguf()

    async def use(engine: Engine) -> None:
        together = await engine.run(CAP, asked(path, n=3, temperature=1, deterministic=True))
        events = [one for one in together.items_of("events") if one["type"] == "text"]
        made = [together.text, *("".join(one["text"] for one in events if one["index"] == n) for n in (1, 2))]
        for seed, text in zip((5, 6, 7), made, strict=True):
            assert (await engine.run(CAP, asked(path, seed=seed, temperature=1, deterministic=True))).text == text

    with_engine(use)


def test_a_model_that_says_much_while_it_loads_fills_no_log(
    write_gguf: WriteGguf, open_model: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    open_model(write_gguf(**{f"general.note.{number}": "x" * 2000 for number in range(400)}))
    said = capfd.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("llama.cpp")]
    assert 0 < len(lines) <= 301
    assert all(len(line) < 1100 for line in lines)
    assert said.out == ""
