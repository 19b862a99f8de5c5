"""Models that remember otherwise than by one cell for each token: recurrent, hybrid, with sliding windows, with places
of several dimensions. Small random ones, so that what comes of the text is not the question."""

import random
import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_modelkit.gguf.header import read_header
from cartdeck_modelkit.gguf.memory import MOST_TEXTS, estimate_memory
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

CAP = "cap:generate-text;gguf"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """How wide a model and its parts are. Keys and values are of one head."""

    width: int
    inner: int
    head: int
    layers: int
    words: int

    @property
    def heads(self) -> int:
        return self.width // self.head

    def attention(self, layer: str, *more: str) -> Shapes:
        width, head = self.width, self.head
        shapes: Shapes = {"attn_q": (width, width), "attn_k": (width, head), "attn_v": (width, head)}
        shapes |= {"attn_output": (width, width), **dict.fromkeys(more, (head,))}
        return {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}

    def feed_forward(self, layer: str) -> Shapes:
        width, inner = self.width, self.inner
        shapes: Shapes = {"ffn_norm": (width,), "attn_norm": (width,), "ffn_down": (inner, width)}
        shapes |= dict.fromkeys(("ffn_gate", "ffn_up"), (width, inner))
        return {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}


SMALL = Size(width=32, inner=64, head=16, layers=6, words=259)
LARGE = Size(width=768, inner=1536, head=128, layers=12, words=20_000)


def llama(size: Size, layer: str, index: int) -> Shapes:
    return {**size.attention(layer), **size.feed_forward(layer)}


def mamba(size: Size, layer: str, index: int) -> Shapes:
    states, rank, kernel, width, inner = 16, 2, 4, size.width, size.inner
    return {
        f"{layer}.attn_norm.weight": (width,), f"{layer}.ssm_in.weight": (width, 2 * inner),
        f"{layer}.ssm_conv1d.weight": (kernel, inner), f"{layer}.ssm_conv1d.bias": (inner,),
        f"{layer}.ssm_x.weight": (inner, rank + 2 * states), f"{layer}.ssm_dt.weight": (rank, inner),
        f"{layer}.ssm_dt.bias": (inner,), f"{layer}.ssm_a": (states, inner), f"{layer}.ssm_d": (inner,),
        f"{layer}.ssm_out.weight": (inner, width),
    }  # fmt: skip


def gemma(size: Size, layer: str, index: int) -> Shapes:
    norms = {f"{layer}.{name}.weight": (size.width,) for name in ("post_attention_norm", "post_ffw_norm")}
    return {**size.attention(layer, "attn_q_norm", "attn_k_norm"), **size.feed_forward(layer), **norms}


def qwen_vl(size: Size, layer: str, index: int) -> Shapes:
    biases = {"attn_q": (size.width,), "attn_k": (size.head,), "attn_v": (size.head,)}
    named = {f"{layer}.{name}.bias": shape for name, shape in biases.items()}
    return {**size.attention(layer), **size.feed_forward(layer), **named}


def lfm(size: Size, layer: str, index: int) -> Shapes:
    if index % 2:
        return {**size.attention(layer, "attn_q_norm", "attn_k_norm"), **size.feed_forward(layer)}
    width = size.width
    convolution = {"conv": (3, width), "in_proj": (width, 3 * width), "out_proj": (width, width)}
    return {**{f"{layer}.shortconv.{n}.weight": s for n, s in convolution.items()}, **size.feed_forward(layer)}


def jamba(size: Size, layer: str, index: int) -> Shapes:
    if index % 2:
        return {**size.attention(layer), **size.feed_forward(layer)}
    norms = {"ssm_dt_norm": 2, "ssm_b_norm": 16, "ssm_c_norm": 16}
    named = {f"{layer}.{name}.weight": (width,) for name, width in norms.items()}
    return {**mamba(size, layer, index), **named, **size.feed_forward(layer)}


def mixture(size: Size, layer: str, index: int) -> Shapes:
    experts, of_expert, width = 8, size.inner // 4, size.width
    shapes: Shapes = {"ffn_norm": (width,), "attn_norm": (width,), "ffn_gate_inp": (width, experts)}
    shapes |= dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (width, of_expert, experts))
    shapes["ffn_down_exps"] = (of_expert, width, experts)
    named = {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}
    return {**size.attention(layer, "attn_q_norm", "attn_k_norm"), **named}


def gpt(size: Size, layer: str, index: int) -> Shapes:
    width, inner = size.width, size.inner
    shapes: Shapes = {"attn_norm": (width,), "attn_qkv": (width, 3 * width), "attn_output": (width, width)}
    shapes |= {"ffn_norm": (width,), "ffn_up": (width, inner), "ffn_down": (inner, width)}
    return {
        f"{layer}.{name}.{part}": shape if part == "weight" else shape[-1:]
        for name, shape in shapes.items()
        for part in ("weight", "bias")
    }


Kind = tuple[Callable[[Size, str, int], Shapes], Callable[[Size], dict[str, Any]]]
_SSM = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 2}
KINDS: dict[str, Kind] = {
    "mamba": (mamba, lambda size: {**_SSM, "ssm.inner_size": size.inner, "attention.head_count": 0,
                                   "attention.head_count_kv": 0, "feed_forward_length": 0}),
    "gemma3": (gemma, lambda size: {"attention.key_length": size.head, "attention.value_length": size.head,
                                    "attention.sliding_window": 16}),
    "qwen2vl": (qwen_vl, lambda size: {"rope.dimension_sections": [2, 3, 3, 0]}),
    "lfm2": (lfm, lambda size: {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 1] * (size.layers // 2)}),
}  # fmt: skip
MORE_KINDS: dict[str, Kind] = {
    "llama": (llama, lambda size: {}),
    "gpt2": (gpt, lambda size: {"attention.head_count_kv": size.heads, "attention.layer_norm_epsilon": 1e-5}),
    "jamba": (jamba, lambda size: {**_SSM, "ssm.inner_size": size.inner,
                                   "attention.head_count_kv": [0, 1] * (size.layers // 2)}),
    "qwen3moe": (mixture, lambda size: {"expert_count": 8, "expert_used_count": 2,
                                        "expert_feed_forward_length": size.inner // 4}),
}  # fmt: skip
SHARES = {"gemma3", "qwen2vl"}
"""Kinds whose prompts may begin with what was seen before."""


def described(architecture: str, size: Size) -> tuple[dict[str, Any], Shapes]:
    """The metadata of a model, and the shapes of its tensors."""
    of_layer, own = (KINDS | MORE_KINDS)[architecture]
    shared: dict[str, Any] = {"block_count": size.layers, "context_length": 512, "vocab_size": size.words}
    shared |= {"embedding_length": size.width, "feed_forward_length": size.inner, "rope.freq_base": 10000.0}
    shared |= {f"attention.{name}": value for name, value in (("head_count", size.heads), ("head_count_kv", 1))}
    shared["attention.layer_norm_rms_epsilon"] = 1e-5
    shapes: Shapes = {"token_embd.weight": (size.width, size.words)}
    norms = ("token_embd_norm.weight",) if architecture == "lfm2" else ("output_norm.weight",)
    if architecture == "gpt2":
        norms = (*norms, "output_norm.bias")
        shapes["position_embd.weight"] = (size.width, 512)
    shapes |= dict.fromkeys(norms, (size.width,))
    for index in range(size.layers):
        shapes |= of_layer(size, f"blk.{index}", index)
    return {f"{architecture}.{name}": value for name, value in {**shared, **own(size)}.items()}, shapes


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, gguf_file: Callable[..., bytes], tmp_path_factory: Any) -> tuple[str, Path]:
    architecture = request.param
    metadata, shapes = described(architecture, SMALL)
    dice = random.Random(architecture)
    tensors = {name: (shape, _values(dice, name, shape)) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("memories") / f"{architecture}.gguf"
    path.write_bytes(gguf_file(architecture, metadata, tensors))
    return architecture, path


def _values(dice: random.Random, name: str, shape: tuple[int, ...]) -> bytes:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if "norm" in name:
        return struct.pack(f"<{count}f", *([1.0] * count))
    if name.endswith("ssm_a"):
        return struct.pack(f"<{count}f", *([-1.0] * count))
    return struct.pack(f"<{count}f", *(dice.gauss(0.0, 0.3) for _ in range(count)))


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


def arguments_for(path: Path, prompt: str, **changes: Any) -> dict[str, Any]:
    settings = {"model": str(path), "prompt": prompt, "temperature": 0, "max-tokens": 12, "threads": 1}
    return {**settings, "deterministic": True, "logit-bias": {"2": -100}, **changes}


def test_texts_are_the_same_alone_together_and_with_a_beginning_seen_before(
    engine: Any, model: tuple[str, Path]
) -> None:
    architecture, path = model
    long = "The fox and the hen live in a wood beside a river, and they talk. " * 3
    first = engine.run(CAP, arguments_for(path, long))
    assert first.provenance["usage"]["completion_tokens"] == 12
    again = engine.run(CAP, arguments_for(path, long))
    other = engine.run(CAP, arguments_for(path, long[:150] + " but not today"))
    assert again.text == first.text
    assert (again.provenance["usage"]["cached_tokens"] >= 64) is (architecture in SHARES)
    prompts = [long, long[:150] + " but not today", "short", "another"] * 2
    with ThreadPoolExecutor(8) as pool:
        free = list(pool.map(lambda one: engine.run(CAP, arguments_for(path, one, deterministic=False)), prompts))
        exact = list(pool.map(lambda one: engine.run(CAP, arguments_for(path, one)), prompts))
    assert {one.provenance["usage"]["completion_tokens"] for one in free} == {12}
    assert [one.text for one in exact[:2]] == [first.text, other.text]
    assert [one.text for one in exact[:4]] == [one.text for one in exact[4:]]
    several = engine.run(CAP, arguments_for(path, long, deterministic=False, n=3))
    assert several.provenance["usage"]["completion_tokens"] == 36


def test_a_text_that_is_given_up_leaves_the_others_right(engine: Any, model: tuple[str, Path]) -> None:
    _, path = model
    alone = engine.run(CAP, arguments_for(path, "a fox", **{"max-tokens": 40})).text
    pid = next(one.pid for one in engine.stats().sessions if one.key.cartridge == "gguf" and path.name in str(one.key))
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: engine.run(CAP, arguments_for(path, "a fox", **{"max-tokens": 40})))
        with engine.call(CAP, arguments_for(path, "hen " * 90, deterministic=False, **{"max-tokens": 100})) as call:
            next(iter(call))
            call.cancel()
        assert beside.result(timeout=60).text == alone
    with pytest.raises(CartdeckError) as caught:
        engine.run(CAP, arguments_for(path, "a" * 600))
    assert caught.value.code is Code.CONTEXT_OVERFLOW
    filled = engine.run(CAP, arguments_for(path, "a" * 500, **{"max-tokens": 100}))
    assert filled.provenance["finish_reason"] == "length"
    assert pid == next(
        one.pid for one in engine.stats().sessions if one.key.cartridge == "gguf" and path.name in str(one.key)
    )


ALLOCATED = re.compile(r" (?:RS|compute|output) buffer size = +([0-9.]+) MiB|size = +([0-9.]+) MiB \([^)]*\), K ")


@pytest.mark.parametrize("architecture", [*KINDS, *MORE_KINDS])
def test_the_estimate_of_a_context_is_what_the_engine_allocates(
    architecture: str, hollow_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from cartdeck_gguf import llama
    from cartdeck_gguf.context import Context
    from cartdeck_gguf.loading import import_engine, native_log

    import_engine()
    params = llama.NATIVE.llama_model_default_params()
    params.no_alloc, params.load_mode = True, llama.NATIVE.LLAMA_LOAD_MODE_NONE  # the engine counts, and takes nothing
    monkeypatch.setattr(llama.NATIVE, "llama_model_default_params", lambda: params)
    path = hollow_gguf(architecture, *described(architecture, LARGE), words=LARGE.words)
    model = llama.Model(path, log=native_log)
    for context_size, texts in ((300, MOST_TEXTS), (4096, 1), (40_000, MOST_TEXTS)):
        native_log.begin_section()
        capsys.readouterr()
        Context(model, log=native_log, context_size=context_size, threads=1, most_sequences=texts).close()
        found = ALLOCATED.findall(capsys.readouterr().err)
        allocated_bytes = sum(float(one or other) for one, other in found) * 2**20
        estimate = estimate_memory(read_header(path), context_size, weights_bytes=0, texts=texts)
        assert estimate.total_bytes == pytest.approx(allocated_bytes, rel=0.1), (context_size, texts, found)
    model.close()
