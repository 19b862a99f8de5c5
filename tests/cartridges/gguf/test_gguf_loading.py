"""A model that cannot be loaded gives a typed error with the engine's own words; none ends the process."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cartdeck_gguf.load_failure import first_reason, load_failure
from cartdeck_gguf.loading import choose_context
from cartdeck_modelkit.gguf.header import Header, read_header
from cartdeck_modelkit.gguf.memory import estimate_memory
from cartdeck_protocol.errors import CartdeckError, Code

Open = Callable[..., Any]
WriteGguf = Callable[..., Path]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def error_of(function: Callable[[], Any]) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        function()
    return caught.value


@pytest.mark.model
def test_an_architecture_that_the_engine_does_not_know_is_named(write_gguf: WriteGguf, open_model: Open) -> None:
    path = write_gguf(**{"general.architecture": "zzz"})
    error = error_of(lambda: open_model(path))
    assert error.code is Code.UNSUPPORTED_ARCHITECTURE
    assert error.details["architecture"] == "zzz"
    assert error.details["engine"].startswith("llama-cpp-python 0.")
    assert any("unknown model architecture" in line for line in error.details["log"])
    assert path.exists()


@pytest.mark.model
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"llama.block_count": 3}, Code.BAD_MODEL_FILE, "blk.2.attn_norm.weight"),
        ({"llama.attention.head_count": 3}, Code.BAD_MODEL_FILE, "n_rot"),
        ({"llama.context_length": None}, Code.BAD_MODEL_FILE, "context_length"),
        ({"tokenizer.ggml.model": "zzz"}, Code.UNSUPPORTED_ARCHITECTURE, "tokenizer 'zzz'"),
        ({"llama.attention.causal": False}, Code.UNSUPPORTED, "embedding model"),
        ({"tokenizer.ggml.model": "bert"}, Code.UNSUPPORTED, "embedding model"),
        ({"general.architecture": "clip"}, Code.BAD_MODEL_FILE, "projector"),
        ({"general.type": "adapter"}, Code.BAD_MODEL_FILE, "LoRA adapter"),
        ({"general.architecture": None}, Code.BAD_MODEL_FILE, "no architecture"),
        # from here on the engine itself would end the process
        ({"llama.block_count": 0}, Code.BAD_MODEL_FILE, "0 layers"),
        ({"llama.block_count": 600}, Code.BAD_MODEL_FILE, "600 layers"),
        ({"llama.nextn_predict_layers": 5}, Code.BAD_MODEL_FILE, "5 of its 2 layers"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, Code.BAD_MODEL_FILE, "layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, Code.BAD_MODEL_FILE, "layer_norm_rms_epsilon"),
        ({"llama.rope.scaling.type": "zzz"}, Code.BAD_MODEL_FILE, "rope scaling"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 0}, Code.BAD_MODEL_FILE, "experts"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 5}, Code.BAD_MODEL_FILE, "experts"),
        ({"llama.expert_count": 10**6, "llama.expert_used_count": 2}, Code.BAD_MODEL_FILE, "experts"),
        (
            {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_group_count": 4},
            Code.BAD_MODEL_FILE,
            "groups",
        ),
        ({"general.architecture": "jamba", "jamba.ssm.inner_size": 96}, Code.BAD_MODEL_FILE, "ssm.inner_size"),
        ({"general.architecture": "grovemoe"}, Code.BAD_MODEL_FILE, "expert_count"),
        ({"general.alignment": 1}, Code.BAD_MODEL_FILE, "multiples of 32"),
        ({"tokenizer.ggml.model": "no_vocab"}, Code.BAD_MODEL_FILE, "no vocabulary"),
        ({"tokenizer.ggml.tokens": None}, Code.BAD_MODEL_FILE, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"] * 259}, Code.BAD_MODEL_FILE, "twice"),
        ({"tokenizer.ggml.tokens": [""] * 259}, Code.BAD_MODEL_FILE, "twice"),
    ],
)
def test_a_model_with_numbers_that_cannot_be_is_refused(
    write_gguf: WriteGguf, open_model: Open, changes: dict[str, Any], code: Code, said: str
) -> None:
    error = error_of(lambda: open_model(write_gguf(**changes)))
    assert error.code is code
    assert said in str(error)


@pytest.mark.model
def test_odd_but_possible_vocabularies_load_and_make_text(
    write_gguf: WriteGguf, open_model: Open, make_text: Callable[..., Any]
) -> None:
    for number, changes in enumerate(
        (
            {"tokenizer.ggml.bos_token_id": 10**6},
            {"tokenizer.ggml.eos_token_id": None},
            {"tokenizer.ggml.token_type": [3] * 259},
            {"tokenizer.ggml.tokens": [*TOKENS[:-1], "z" * 200_000], "tokenizer.ggml.token_type": None},
        )
    ):
        model = open_model(write_gguf(f"{number}.gguf", **changes))
        assert make_text(model, "hello").completion_tokens <= 8


@pytest.mark.model
def test_a_load_shows_its_progress_and_can_be_given_up(real_model: Path, open_model: Open) -> None:
    seen: list[float] = []

    def watch(fraction: float) -> bool:
        seen.append(fraction)
        return True

    open_model(real_model, context_size=512, on_progress=watch)
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    error = error_of(lambda: open_model(real_model, context_size=512, on_progress=lambda fraction: fraction < 0.3))
    assert error.code is Code.CANCELLED
    assert error.phase == "load"


@pytest.mark.model
def test_a_model_with_many_keys_floods_no_log_and_no_descriptor(
    write_gguf: WriteGguf, open_model: Open, make_text: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(**{f"flood.key-{number}": "x" * 100 for number in range(400)})
    make_text(open_model(path), "hello")
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert 0 < len(lines) < 400  # 300; the system has its say in some
    assert all(line.startswith("llama.cpp ") for line in lines)
    assert any(line.startswith("llama.cpp info: ") for line in lines)


@pytest.mark.model
def test_a_load_leaves_the_processes_descriptors_alone(real_model: Path, open_model: Open) -> None:
    with tempfile.TemporaryFile() as file:
        before = [os.fstat(descriptor) for descriptor in (1, 2)]
        open_model(real_model, context_size=512, on_progress=lambda _: os.fstat(1) == before[0])
        assert [os.fstat(descriptor).st_ino for descriptor in (1, 2)] == [one.st_ino for one in before]
        assert file.fileno() > 2


def big_header(**numbers: int) -> Header:
    named = {"block_count": 32, "embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": 8}
    metadata: dict[str, Any] = {f"llama.{name}": value for name, value in {**named, **numbers}.items()}
    return Header(Path("big.gguf"), 0, 3, {"general.architecture": "llama", **metadata}, (), 0)


def test_the_models_own_context_is_cut_to_what_memory_allows() -> None:
    header = big_header(context_length=131_072)
    whole = estimate_memory(header, 131_072, weights_bytes=0).total_bytes
    assert choose_context([header], 0, available_bytes=3 * whole) == 131_072
    cut = choose_context([header], 0, available_bytes=whole)
    assert 256 <= cut < 131_072
    assert estimate_memory(header, cut, weights_bytes=0).total_bytes <= whole // 2
    assert choose_context([header], 0, available_bytes=None) == 131_072


def test_a_context_that_cannot_fit_is_refused_with_the_numbers() -> None:
    header = big_header(context_length=8192)
    error = error_of(lambda: choose_context([header], 4_000_000, available_bytes=8 << 30))
    assert error.code is Code.INSUFFICIENT_MEMORY
    assert error.argument == "context-size"
    assert error.details["needed"] > error.details["available"] == 8 << 30
    assert error_of(lambda: choose_context([header], 0, available_bytes=1 << 20)).code is Code.INSUFFICIENT_MEMORY
    assert choose_context([header], 4096, available_bytes=8 << 30) == 4096


@pytest.mark.model
def test_a_part_of_a_small_model_is_truncated_however_it_is_cut(write_gguf: WriteGguf, open_model: Open) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    for size in (4, 24, len(whole) // 2, len(whole) * 99 // 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        error = error_of(lambda: open_model(path))
        assert error.code is Code.MODEL_TRUNCATED
        assert error.details["size"] == size < error.details["needed"]
    path.write_bytes(whole)
    assert read_header(path).needed_bytes == len(whole)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["llama_model_load: error loading model: unknown model architecture: 'x'"], Code.UNSUPPORTED_ARCHITECTURE),
        (
            ["llama_model_load: error loading model: tensor 'a' data is not within the file bounds, corrupted"],
            Code.MODEL_TRUNCATED,
        ),
        (["llama_model_load: error loading model: unable to allocate CPU buffer"], Code.OUT_OF_MEMORY),
        (["ggml_cuda: cudaMalloc failed: out of memory", "llama_model_load: failed"], Code.OUT_OF_MEMORY),
        (["something new"], Code.BAD_MODEL_FILE),
        ([], Code.BAD_MODEL_FILE),
    ],
)
def test_what_the_engine_said_becomes_one_code(lines: list[str], code: Code) -> None:
    error = load_failure(Path("/m/x.gguf"), errors=lines, tail=["error: x"], engine="engine 1")
    assert error.code is code
    assert error.details["log"] == ["error: x"]
    assert "x.gguf" in str(error)


def test_the_cause_is_the_first_error_without_the_functions_that_passed_it_on() -> None:
    lines = ["llama_model_load: error loading model: error loading model vocabulary: no merges", "f: failed to load"]
    assert first_reason(lines) == "no merges"
