"""A model's record comes from its header alone, and its memory estimate follows the context."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cartdeck_gguf.info import describe_model
from cartdeck_gguf.shards import read_model
from cartdeck_modelkit.gguf.memory import estimate_memory, largest_context
from cartdeck_modelkit.machine import available_memory_bytes, default_threads, usable_processors

WriteGguf = Callable[..., Path]
MEMORY_PARTS = ("weights_bytes", "cache_bytes", "compute_bytes", "vocabulary_bytes")


@pytest.mark.model
def test_the_record_of_a_real_model_is_exact_and_quick(real_model: Path) -> None:
    took: list[float] = []
    for _ in range(5):
        started = time.process_time()
        record = describe_model(read_model(real_model), context_size=2048)
        took.append(time.process_time() - started)
    assert min(took) < 1.0  # 0.02 s on a quiet machine
    assert record["architecture"] == "llama"
    assert record["parameters"] == 134_515_008
    assert record["context_length"] == 8192
    assert record["quantization"]["name"] == "Q4_1"
    types = record["quantization"]["tensor_types"]
    assert {name: kind["tensors"] for name, kind in types.items()} == {"F32": 61, "Q4_1": 210, "Q8_0": 1}
    assert record["special_tokens"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert record["template"].startswith("{% for message in messages %}")
    assert record["files"] == [{"path": str(real_model), "size_bytes": 98_362_432}]
    assert record["memory"]["cache_bytes"] == 45 << 20  # what llama.cpp itself logs for 2048 tokens
    assert record["memory"]["compute_bytes"] == pytest.approx((15.5 + 12.0) * 2**20, rel=0.05)  # and its output
    assert record["memory"]["vocabulary_bytes"] == pytest.approx(16.6 * 10**6, rel=0.2)  # as much more is held
    assert record["memory"]["total_bytes"] == sum(record["memory"][part] for part in MEMORY_PARTS)
    json.dumps(record, allow_nan=False)


def test_a_model_without_template_or_vocabulary_has_a_record_too(write_gguf: WriteGguf) -> None:
    changes = {"tokenizer.ggml.tokens": None, "llama.context_length": None, "llama.attention.head_count_kv": [1, 0]}
    record = describe_model(read_model(write_gguf(**changes)))
    assert record["template"] is None
    assert record["context_length"] is None
    assert record["special_tokens"]["bos"] == {"id": 1, "text": None}
    assert record["memory"]["cache_bytes_per_token"] == 1 * 32 * 2


def test_absurd_numbers_in_a_header_do_no_harm(write_gguf: WriteGguf) -> None:
    changes = {
        "llama.block_count": 2**32 - 1,
        "llama.attention.head_count": 0,
        "llama.attention.head_count_kv": [float("nan"), float("inf")],
        "tokenizer.ggml.bos_token_id": 2**32 - 1,
    }
    json.dumps(describe_model(read_model(write_gguf(**changes)), context_size=2**31))


def test_the_largest_context_is_the_one_that_still_fits(write_gguf: WriteGguf) -> None:
    header = read_model(write_gguf())[0]
    for free_bytes in (0, 1 << 20, 10 << 20, 1 << 40):
        size = largest_context(header, limit=131_072, free_bytes=free_bytes)
        assert size % 256 == 0
        assert size == 0 or estimate_memory(header, size, weights_bytes=0).total_bytes <= free_bytes
        larger = estimate_memory(header, size + 256, weights_bytes=0).total_bytes
        assert size == 131_072 or larger > free_bytes


def test_the_machine_is_asked_for_what_this_process_may_use() -> None:
    assert 1 <= default_threads() <= usable_processors()
    available = available_memory_bytes()
    assert available is None or available > 0


def test_the_record_of_a_model_of_any_size_is_quick(tmp_path: Path, write_gguf: WriteGguf) -> None:
    many = [f"token {number}" for number in range(260_000)]
    path = write_gguf("large.gguf", **{"tokenizer.ggml.tokens": many, "tokenizer.ggml.scores": [0.0] * len(many)})
    with path.open("r+b") as file:
        file.truncate(40 << 30)  # as long as a large model, and as empty as the disk lets it be
    best = min(timed(path) for _ in range(3))
    assert best < 2.0  # seconds of computing: reading as much as the file is long takes many


def timed(path: Path) -> float:
    started = time.process_time()
    assert describe_model(read_model(path))["vocabulary_size"] == 260_000
    return time.process_time() - started
