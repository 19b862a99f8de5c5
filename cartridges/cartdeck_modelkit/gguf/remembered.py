"""Owns what a model keeps of the tokens that it has seen, by its header: keys and values of each token in some layers,
a state of fixed size in others.

It does not know how many tokens or texts there are. Which layers keep what follows llama.cpp: `create_memory` in
llama-model.cpp, and the sizes in llama-hparams.cpp.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.hyperparameters import Hyperparameters

_CACHE_VALUE_BYTES: Final = 2
"""Keys and values are float16."""
_STATE_VALUE_BYTES: Final = 4
"""A state is float32."""

_KEEPS_BOTH: Final = frozenset({"falcon-h1"})
"""Architectures each of whose layers keeps a state beside keys and values."""
_SOME_DO_NEITHER: Final = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Architectures some of whose layers are feed-forward alone."""
_ATTENTION_INTERVAL: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""Architectures whose layers keep a state but for each so-manieth, where the header does not say which."""
_FIRST_LAYERS_KEEP: Final = {"gemma3n": 20}
"""Architectures whose later layers look at what earlier ones keep."""
_NO_CACHE: Final = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert", "eurobert", "modern-bert",
     "gemma-embedding", "t5encoder", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1"}
)  # fmt: skip
"""Architectures that see a text at once and keep nothing."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """Bytes of keys and values for each token, and of the state of each text, over all layers."""

    bytes_per_token: int
    bytes_per_text: int


def remembered(header: Header) -> Remembered:
    """What the model of `header` keeps."""
    numbers = Hyperparameters(header)
    if header.architecture in _NO_CACHE:
        return Remembered(0, 0)
    heads = numbers.of_layers("attention.head_count_kv", numbers.number("attention.head_count"))
    state_values, has_state = _state_values(numbers), _layers_with_state(numbers, heads)
    values = sum(
        _values_per_token(numbers, index, count)
        for index, count in enumerate(heads)
        if not has_state[index] or header.architecture in _KEEPS_BOTH
    )
    return Remembered(values * _CACHE_VALUE_BYTES, sum(has_state) * state_values * _STATE_VALUE_BYTES)


def _values_per_token(numbers: Hyperparameters, layer: int, heads: int) -> int:
    """Keys and values of one token in one layer. With latent attention the values are made of the keys."""
    architecture = numbers.header.architecture
    keeping = _FIRST_LAYERS_KEEP.get(architecture, numbers.layers - numbers.number("attention.shared_kv_layers"))
    if layer >= keeping:
        return 0
    query_heads = numbers.number("attention.head_count")
    width = numbers.number("embedding_length") // query_heads if query_heads else 0
    in_window = numbers.has("attention.key_length_swa") and numbers.of_layers("attention.sliding_window_pattern")[layer]
    ending = "_swa" if in_window else ""
    keys = numbers.number(f"attention.key_length{ending}", width)
    is_latent = numbers.has("attention.key_length_mla") and numbers.has("attention.value_length_mla")
    return heads * (keys + (0 if is_latent else numbers.number(f"attention.value_length{ending}", width)))


def _layers_with_state(numbers: Hyperparameters, heads: list[int]) -> list[bool]:
    architecture = numbers.header.architecture
    if not _state_values(numbers):
        return [False] * len(heads)
    if architecture in _KEEPS_BOTH:
        return [True] * len(heads)
    if numbers.has("attention.recurrent_layers"):
        return [bool(one) for one in numbers.of_layers("attention.recurrent_layers")]
    if architecture in _ATTENTION_INTERVAL:
        interval = max(1, numbers.number("full_attention_interval", _ATTENTION_INTERVAL[architecture]))
        return [(index + 1) % interval != 0 for index in range(len(heads))]
    inner = numbers.of_layers("feed_forward_length") if architecture in _SOME_DO_NEITHER else [0] * len(heads)
    return [count == 0 and inner[index] == 0 for index, count in enumerate(heads)]


def _state_values(numbers: Hyperparameters) -> int:
    """The state of one text in one layer: what a convolution still needs of the last tokens, and what is carried on."""
    width, query_heads = numbers.number("embedding_length"), numbers.number("attention.head_count")
    if head := numbers.number("wkv.head_size"):
        return numbers.number("token_shift_count", 2) * width + width * head
    kernel = max(0, numbers.number("ssm.conv_kernel") - 1)
    if length := numbers.number("shortconv.l_cache"):
        return width * (length - 1)
    if head := numbers.number("kda.head_dim"):
        return 3 * (kernel or 3) * query_heads * head + head * head * query_heads
    inner, state = numbers.number("ssm.inner_size"), numbers.number("ssm.state_size")
    return kernel * (inner + 2 * numbers.number("ssm.group_count") * state) + state * inner
