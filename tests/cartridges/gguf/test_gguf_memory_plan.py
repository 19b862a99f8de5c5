"""What the host is asked for before a model is loaded, and what is loaded then."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine
from cartdeck.settings import parse_settings
from cartdeck_gguf.loading import LoadSettings, check_model, choose_context
from cartdeck_gguf.memory_plan import USEFUL_CONTEXT, device_share, plan_memory
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import estimate_memory
from cartdeck_protocol.errors import CartdeckError, Code

GB = 10**9
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


@pytest.mark.model
def test_the_host_knows_what_a_loaded_model_takes_and_refuses_what_is_too_large(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    arguments = {"model": str(path), "prompt": "hello", "max-tokens": 1, "threads": 1}
    settings = parse_settings({"memory": {"budget_bytes": 20_000_000}}, origin="test")

    async def use() -> None:
        async with asyncio.timeout(60), Engine(settings) as engine:
            result = await engine.run("cap:generate-text;gguf", arguments)
            assert result.provenance["settings"]["context_size"] == 512
            (session,) = [one for one in engine.stats().sessions if one.key.cartridge == "gguf"]
            headers = check_model(path)
            weights = sum(tensor.size_bytes or 0 for tensor in headers[0].tensors)
            assert session.reserved_bytes == estimate_memory(headers[0], 512, weights_bytes=weights).total_bytes
            with pytest.raises(CartdeckError) as caught:
                await engine.run("cap:generate-text;gguf", {**arguments, "context-size": 1_000_000})
            assert caught.value.code is Code.INSUFFICIENT_MEMORY
            assert caught.value.details["need"] > caught.value.details["budget"] == 20_000_000

    asyncio.run(use())
