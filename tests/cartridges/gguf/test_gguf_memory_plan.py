"""What the host is asked for before a model is loaded, and what is loaded then."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine
from cartdeck.settings import parse_settings
from cartdeck_gguf.loading import LoadSettings, check_model, choose_context, import_engine
from cartdeck_gguf.memory_plan import USEFUL_CONTEXT, device_share, plan_memory, vector_context_bytes
from cartdeck_gguf.offload import plan_offload
from cartdeck_gguf.prefix_cache import PARKED_BYTES
from cartdeck_modelkit.gguf.header import ArrayValue, Header, read_header
from cartdeck_modelkit.gguf.memory import estimate_memory, vocabulary_bytes
from cartdeck_protocol.errors import CartdeckError, Code

MB, GB = 10**6, 10**9
WriteGguf = Callable[..., Path]


def big_header(context_length: int = 131_072) -> Header:
    named = {"block_count": 32, "embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": 8}
    metadata: dict[str, Any] = {f"llama.{name}": value for name, value in named.items()}
    metadata["llama.context_length"] = context_length
    return Header(Path("big.gguf"), 0, 3, {"general.architecture": "llama", **metadata}, (), 0)


def bytes_for(header: Header, context_size: int) -> int:
    return estimate_memory(header, context_size, weights_bytes=0).total_bytes


def test_a_context_that_was_asked_for_is_planned_as_it_is() -> None:
    header = big_header()
    plan = plan_memory([header], LoadSettings(context_size=100_000), budget_bytes=GB, free_bytes=GB)
    assert (plan.size_bytes, plan.context_limit) == (bytes_for(header, 100_000), 0)


def test_a_context_that_nobody_asked_for_takes_half_of_what_is_free() -> None:
    header = big_header()
    plan = plan_memory([header], LoadSettings(), budget_bytes=100 * GB, free_bytes=100 * GB)
    assert plan.context_limit == 131_072
    plan = plan_memory([header], LoadSettings(), budget_bytes=100 * GB, free_bytes=8 * GB)
    assert USEFUL_CONTEXT < plan.context_limit < 131_072
    assert plan.size_bytes == bytes_for(header, plan.context_limit) <= 4 * GB


def test_others_give_way_for_a_useful_context_and_the_budget_bounds_it() -> None:
    header = big_header()
    plan = plan_memory([header], LoadSettings(), budget_bytes=100 * GB, free_bytes=0)
    assert plan.context_limit == USEFUL_CONTEXT
    plan = plan_memory([header], LoadSettings(), budget_bytes=GB // 4, free_bytes=0)
    assert 256 <= plan.context_limit < USEFUL_CONTEXT
    assert plan.size_bytes <= GB // 4
    small = big_header(context_length=128)
    assert plan_memory([small], LoadSettings(), budget_bytes=GB, free_bytes=0).context_limit == 128


def test_what_was_granted_limits_the_context() -> None:
    header = big_header()
    assert choose_context([header], 0, available_bytes=100 * GB, limit=5000) == 5000
    assert choose_context([header], 8000, available_bytes=100 * GB, limit=5000) == 8000


def test_layers_on_a_device_take_none_of_the_machines_memory() -> None:
    header = big_header()
    assert device_share(header, -1, can_use_gpu=False) == 0.0
    assert device_share(header, 0, can_use_gpu=True) == 0.0
    assert device_share(header, -1, can_use_gpu=True) == 1.0
    assert device_share(header, 11, can_use_gpu=True) == pytest.approx(1 / 3)
    whole = plan_memory([header], LoadSettings(), budget_bytes=GB, free_bytes=GB, device_share=1.0)
    assert (whole.size_bytes, whole.context_limit) == (0, 0)


def test_what_is_parked_takes_a_part_of_what_a_model_leaves_free() -> None:
    header = big_header()
    settings = LoadSettings(context_size=4096, parked_bytes=GB)
    plan = plan_memory([header], settings, budget_bytes=100 * GB, free_bytes=100 * GB)
    assert plan.parked_bytes == GB
    plan = plan_memory([header], settings, budget_bytes=100 * GB, free_bytes=plan.size_bytes + 400)
    assert plan.parked_bytes == 100
    assert plan_memory([header], settings, budget_bytes=GB, free_bytes=0).parked_bytes == 0


def test_a_gpu_gets_the_layers_that_its_memory_takes() -> None:
    header = big_header()
    whole = bytes_for(header, 4096)
    for left_as_it_is in (LoadSettings(gpu_layers=0), LoadSettings(gpu_layers=7)):
        assert plan_offload([header], left_as_it_is, device_bytes=GB) is left_as_it_is
    assert plan_offload([header], LoadSettings(), device_bytes=None) == LoadSettings()
    asked = LoadSettings(context_size=4096)
    assert plan_offload([header], asked, device_bytes=2 * whole).gpu_layers == 33
    half = plan_offload([header], asked, device_bytes=whole // 2).gpu_layers
    assert 0 < half < 20
    assert device_share(header, half, can_use_gpu=True) * whole < whole // 2
    assert plan_offload([header], asked, device_bytes=0).gpu_layers == 0


def test_a_context_that_nobody_asked_for_is_half_of_what_a_gpu_has_left() -> None:
    header = big_header()
    planned = plan_offload([header], LoadSettings(), device_bytes=8 * GB)
    assert planned.gpu_layers == 33
    assert USEFUL_CONTEXT < planned.context_limit < 131_072
    assert bytes_for(header, planned.context_limit) <= 4 * GB
    assert choose_context([header], 0, available_bytes=None, limit=planned.context_limit) == planned.context_limit
    small = plan_offload([header], LoadSettings(), device_bytes=bytes_for(header, 1024))
    assert (small.gpu_layers < 33, small.context_limit) == (True, 0)


@pytest.mark.model
def test_the_engine_says_what_a_gpu_has_free_where_there_is_one() -> None:
    engine = import_engine()
    assert (engine.device_memory_bytes() is not None) is engine.can_use_gpu()


def use_budget(budget_bytes: int, use: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = parse_settings({"memory": {"budget_bytes": budget_bytes}}, origin="test")
        async with asyncio.timeout(60), Engine(settings) as engine:
            await use(engine)

    asyncio.run(run())


def session_of(engine: Engine) -> Any:
    (session,) = [one for one in engine.stats().sessions if one.key.cartridge == "gguf"]
    return session


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.model
def test_the_host_knows_what_a_loaded_model_takes_and_refuses_what_is_too_large(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    arguments = {"model": str(path), "prompt": "hello", "max-tokens": 1, "threads": 1}

    async def use(engine: Engine) -> None:
        result = await engine.run("cap:generate-text;gguf", arguments)
        assert result.provenance["settings"]["context_size"] == 512
        headers = check_model(path)
        weights = sum(tensor.size_bytes or 0 for tensor in headers[0].tensors)
        texts = estimate_memory(headers[0], 512, weights_bytes=weights).total_bytes
        first = session_of(engine).reserved_bytes
        assert first > texts + 20 * MB  # with what is parked, and the process itself
        await engine.run("cap:generate-text;gguf", {**arguments, "deterministic": True})
        apart = estimate_memory(headers[0], 512, weights_bytes=0, texts=1).total_bytes
        assert session_of(engine).reserved_bytes - first > apart  # as many cells again
        with pytest.raises(CartdeckError) as caught:
            await engine.run("cap:generate-text;gguf", {**arguments, "context-size": 1_000_000})
        assert caught.value.code is Code.INSUFFICIENT_MEMORY
        assert caught.value.details["need"] > caught.value.details["budget"] == 400 * MB

    use_budget(400 * MB, use)


@pytest.mark.model
def test_what_was_asked_for_is_about_what_a_real_model_holds(real_model: Path) -> None:
    arguments = {"model": str(real_model), "prompt": "hello " * 1000, "max-tokens": 4, "threads": 1}

    async def use(engine: Engine) -> None:
        await engine.run("cap:generate-text;gguf", {**arguments, "context-size": 2048})
        session = session_of(engine)
        assert 0.6 < resident_bytes(session.pid) / (session.reserved_bytes - PARKED_BYTES) < 1.15

    use_budget(8 * GB, use)


def test_the_words_of_a_vocabulary_are_planned_for_wherever_the_layers_are() -> None:
    header = big_header()
    words = {"tokenizer.ggml.tokens": ArrayValue(128_000, None), "tokenizer.ggml.merges": ArrayValue(280_000, None)}
    worded = replace(header, metadata={**header.metadata, **words})
    assert 60 * MB < vocabulary_bytes(worded) < 90 * MB
    for share in (0.0, 1.0):
        plans = [
            plan_memory([one], LoadSettings(context_size=512), budget_bytes=GB, free_bytes=GB, device_share=share)
            for one in (header, worded)
        ]
        logits = (1.0 - share) * (bytes_for(worded, 512) - bytes_for(header, 512))
        assert plans[1].size_bytes - plans[0].size_bytes == vocabulary_bytes(worded) + logits


VOCABULARY = """
import os, sys
from pathlib import Path
from cartdeck_gguf import llama
from cartdeck_gguf.loading import import_engine, native_log

import_engine()
params = llama.NATIVE.llama_model_default_params()
params.vocab_only = True

def held() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))

before = held()
model = llama.NATIVE.llama_model_load_from_file(os.fsencode(sys.argv[1]), params)
print(held() - before if model else 0)
"""


@pytest.mark.model
def test_a_real_vocabulary_takes_about_what_is_planned_for_it(real_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", VOCABULARY, real_model], capture_output=True, timeout=60, check=True)
    assert 0.8 < int(done.stdout.split()[-1]) / vocabulary_bytes(read_header(real_model)) < 1.5


@pytest.mark.model
def test_a_longer_text_to_embed_asks_for_more(write_gguf: WriteGguf) -> None:
    path = write_gguf(**{"llama.context_length": 2048})

    async def use(engine: Engine) -> None:
        await engine.run("cap:embed-text;gguf", {"model": str(path), "texts": ["short"], "threads": 1})
        first = session_of(engine).reserved_bytes
        await engine.run("cap:embed-text;gguf", {"model": str(path), "texts": ["a" * 1500], "threads": 1})
        header = check_model(path)[0]
        grown = vector_context_bytes(header, 1501) - vector_context_bytes(header, 512)
        assert session_of(engine).reserved_bytes - first == pytest.approx(grown, rel=0.1)

    use_budget(8 * GB, use)
