"""Models that remember otherwise than by one cell for each token: recurrent, hybrid, with sliding windows, with places
of several dimensions. Small random ones, so that what comes of the text is not the question."""

import random
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cartdeck
from cartdeck import Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

CAP = "cap:generate-text;gguf"
WIDTH, INNER, HEAD, LAYERS, WORDS = 32, 64, 16, 6, 259
Shapes = dict[str, tuple[int, ...]]


def attention(layer: str, *more: str) -> Shapes:
    shapes: Shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, HEAD), "attn_v": (WIDTH, HEAD)}
    shapes |= {"attn_output": (WIDTH, WIDTH), **dict.fromkeys(more, (HEAD,))}
    return {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}


def feed_forward(layer: str) -> Shapes:
    shapes: Shapes = {"ffn_norm": (WIDTH,), "attn_norm": (WIDTH,), "ffn_down": (INNER, WIDTH)}
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up"), (WIDTH, INNER))
    return {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}


def mamba(layer: str, index: int) -> Shapes:
    states, rank, kernel = 16, 2, 4
    return {
        f"{layer}.attn_norm.weight": (WIDTH,), f"{layer}.ssm_in.weight": (WIDTH, 2 * INNER),
        f"{layer}.ssm_conv1d.weight": (kernel, INNER), f"{layer}.ssm_conv1d.bias": (INNER,),
        f"{layer}.ssm_x.weight": (INNER, rank + 2 * states), f"{layer}.ssm_dt.weight": (rank, INNER),
        f"{layer}.ssm_dt.bias": (INNER,), f"{layer}.ssm_a": (states, INNER), f"{layer}.ssm_d": (INNER,),
        f"{layer}.ssm_out.weight": (INNER, WIDTH),
    }  # fmt: skip


def gemma(layer: str, index: int) -> Shapes:
    norms = {f"{layer}.{name}.weight": (WIDTH,) for name in ("post_attention_norm", "post_ffw_norm")}
    return {**attention(layer, "attn_q_norm", "attn_k_norm"), **feed_forward(layer), **norms}


def qwen_vl(layer: str, index: int) -> Shapes:
    biases = {"attn_q": (WIDTH,), "attn_k": (HEAD,), "attn_v": (HEAD,)}
    named = {f"{layer}.{name}.bias": shape for name, shape in biases.items()}
    return {**attention(layer), **feed_forward(layer), **named}


def lfm(layer: str, index: int) -> Shapes:
    if index % 2:
        return {**attention(layer, "attn_q_norm", "attn_k_norm"), **feed_forward(layer)}
    convolution = {"conv": (3, WIDTH), "in_proj": (WIDTH, 3 * WIDTH), "out_proj": (WIDTH, WIDTH)}
    return {**{f"{layer}.shortconv.{n}.weight": s for n, s in convolution.items()}, **feed_forward(layer)}


KINDS: dict[str, tuple[Callable[[str, int], Shapes], dict[str, Any]]] = {
    "mamba": (mamba, {"ssm.conv_kernel": 4, "ssm.inner_size": INNER, "ssm.state_size": 16, "ssm.time_step_rank": 2,
                      "attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}),
    "gemma3": (gemma, {"attention.key_length": HEAD, "attention.value_length": HEAD, "attention.sliding_window": 16}),
    "qwen2vl": (qwen_vl, {"rope.dimension_sections": [2, 3, 3, 0]}),
    "lfm2": (lfm, {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 1] * (LAYERS // 2)}),
}  # fmt: skip
SHARES = {"gemma3", "qwen2vl"}
"""Kinds whose prompts may begin with what was seen before."""


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, gguf_file: Callable[..., bytes], tmp_path_factory: Any) -> tuple[str, Path]:
    architecture = request.param
    of_layer, own = KINDS[architecture]
    shared = {"block_count": LAYERS, "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": INNER,
              "attention.head_count": 2, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5,
              "rope.freq_base": 10000.0, "vocab_size": WORDS}  # fmt: skip
    shapes: Shapes = {"token_embd.weight": (WIDTH, WORDS)}
    norms = ("token_embd_norm.weight",) if architecture == "lfm2" else ("output_norm.weight",)
    shapes |= dict.fromkeys(norms, (WIDTH,))
    for index in range(LAYERS):
        shapes |= of_layer(f"blk.{index}", index)
    dice = random.Random(architecture)
    tensors = {name: (shape, _values(dice, name, shape)) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("memories") / f"{architecture}.gguf"
    metadata = {f"{architecture}.{name}": value for name, value in {**shared, **own}.items()}
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
