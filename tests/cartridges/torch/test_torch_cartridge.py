"""The cartridge as its callers meet it: through an engine, in its own process, with the models cartridge beside it."""

import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Data, End, Engine, Log, Progress
from cartdeck_protocol.errors import CartdeckError, Code

WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]
CAP = "cap:embed-text;torch"


async def texts_of(texts: list[Any]) -> Any:
    for text in texts:
        yield text


async def events_of(engine: Engine, model: Path, texts: list[Any], **changes: Any) -> list[Any]:
    arguments = {"model": str(model), "texts": texts_of(texts), "threads": 1, **changes}
    async with engine.call(CAP, arguments) as call:
        return [event async for event in call]


def vectors_of(events: list[Any]) -> list[tuple[float, ...]]:
    return [struct.unpack(f"<{len(event.value) // 4}f", event.value) for event in events if isinstance(event, Data)]


def test_texts_become_vectors_in_their_order_and_the_end_says_what_made_them(
    with_engine: WithEngine, tiny_bert: Path
) -> None:
    async def use(engine: Engine) -> None:
        texts = ["hi", "word " * 300, "a man is eating food", "hi"]
        await engine.unload(CAP, {"model": str(tiny_bert), "threads": 1})  # whichever test came before
        events = await events_of(engine, tiny_bert, texts)
        vectors = vectors_of(events)
        assert [len(vector) for vector in vectors] == [32] * 4
        assert vectors[0] == pytest.approx(vectors[3], abs=1e-5)
        assert vectors[0] != pytest.approx(vectors[2], abs=1e-2)
        end = events[-1]
        assert isinstance(end, End)
        made = end.provenance
        assert made["model"]["spec"] == str(tiny_bert)
        assert made["engine"]["library"] == "torch"
        assert made["engine"]["version"].startswith("torch ")
        assert (made["device"], made["dtype"], made["truncated"]) == ("cpu", "float32", False)
        assert made["usage"]["prompt_tokens"] == 3 + 302 + 7 + 3
        assert made["timing"]["load_s"] > 0
        assert any("no GPU" in notice for notice in made["settings"]["notices"])
        assert any("no GPU" in event.message for event in events if isinstance(event, Log))
        check_progress(events)
        again = await events_of(engine, tiny_bert, ["word " * 600], truncate="end")
        assert again[-1].provenance["truncated"]
        assert "load" not in {event.phase for event in again if isinstance(event, Progress)}
        assert not any(isinstance(event, Log) and "GPU" in event.message for event in again)

    def check_progress(events: list[Any]) -> None:
        steps = [event for event in events if isinstance(event, Progress)]
        fractions = [step.fraction for step in steps]
        assert fractions == sorted(fractions)
        assert steps[-1].phase == "inference"  # of what waits for its reader the latest is kept
        assert all(0.25 <= step.fraction <= 0.35 for step in steps if step.phase == "load")

    with_engine(use)


def test_a_text_that_cannot_be_embedded_is_told_by_its_place_after_those_before_it(
    with_engine: WithEngine, tiny_bert: Path
) -> None:
    async def use(engine: Engine) -> None:
        async def outcome(texts: list[Any]) -> tuple[int, CartdeckError]:
            vectors = 0
            async with engine.call(CAP, {"model": str(tiny_bert), "texts": texts_of(texts), "threads": 1}) as call:
                try:
                    async for event in call:
                        vectors += isinstance(event, Data)
                except CartdeckError as error:
                    return vectors, error
            raise AssertionError("it was taken")

        count, error = await outcome(["hi", "a man", "word " * 600, "hi"])
        assert (count, error.code, error.details["index"]) == (2, Code.CONTEXT_OVERFLOW, 2)
        assert error.details["tokens"] == 602
        count, error = await outcome([5])
        assert (count, error.code) == (0, Code.BAD_ARGUMENT)
        assert vectors_of(await events_of(engine, tiny_bert, [])) == []

    with_engine(use)


def test_the_cap_without_a_tag_finds_this_cartridge_for_a_folder(with_engine: WithEngine, tiny_bert: Path) -> None:
    async def use(engine: Engine) -> None:
        result = await engine.run("cap:embedding-dimensions", {"model": str(tiny_bert)})
        assert result.json() == {"dimensions": 32, "max_tokens": 512, "pooling": "mean"}
        assert result.provenance["cartridge"]["name"] == "torch"

    with_engine(use)


def test_a_call_that_is_given_up_frees_the_device_for_the_next(with_engine: WithEngine, tiny_bert: Path) -> None:
    async def use(engine: Engine) -> None:
        arguments = {"model": str(tiny_bert), "texts": texts_of(["word " * 500] * 4000), "threads": 1}
        async with engine.call(CAP, arguments) as call:
            async for event in call:
                if isinstance(event, Progress) and event.phase == "inference" and event.work:
                    break
            call.cancel("no longer wanted")
            with pytest.raises(CartdeckError) as caught:
                async for _ in call:
                    pass
            assert caught.value.code is Code.CANCELLED
        started = time.monotonic()
        assert len(vectors_of(await events_of(engine, tiny_bert, ["hi"]))) == 1
        assert time.monotonic() - started < 20

    with_engine(use)


def test_importing_the_handlers_loads_no_library() -> None:
    program = (
        "import time; started = time.process_time(); import cartdeck_torch.handlers; "
        "took = time.process_time() - started; import sys; "
        "print(took, *sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'tokenizers', 'PIL', 'soundfile'}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    took, *loaded = done.stdout.split()
    assert not loaded
    assert float(took) < 3  # 0.2 s on a machine that does nothing else
