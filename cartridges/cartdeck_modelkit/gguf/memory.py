"""Owns the estimate of the memory that a model takes with a context of a given size, from its header alone.

It does not know how much memory there is. The terms follow what llama.cpp logs when it makes its buffers: weights,
key-value cache, compute buffer; for a dense model they come within a few per cent.
"""

from dataclasses import dataclass

from cartdeck_modelkit.gguf.header import ArrayValue, Header

CACHE_VALUE_BYTES = 2
"""The key-value cache holds float16."""

SLICE_TOKENS = 512
"""How many tokens of a prompt are computed at once."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a model takes with a context of `context_size` tokens."""

    context_size: int
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


def estimate_memory(header: Header, context_size: int, *, weights_bytes: int) -> MemoryEstimate:
    """What the model of `header`, all of whose files hold `weights_bytes` of tensors, takes with this context."""
    return MemoryEstimate(
        context_size=context_size,
        weights_bytes=weights_bytes,
        cache_bytes=context_size * cache_bytes_per_token(header) + _state_bytes(header),
        compute_bytes=_compute_bytes(header, context_size),
    )


def cache_bytes_per_token(header: Header) -> int:
    """What one token takes in the key-value cache, over all layers; 0 for a model that has none."""
    layers, heads = _hyperparameter(header, "block_count"), _hyperparameter(header, "attention.head_count")
    width = _hyperparameter(header, "embedding_length")
    head_width = width // heads if heads else 0
    key_width = _hyperparameter(header, "attention.key_length", default=head_width)
    value_width = _hyperparameter(header, "attention.value_length", default=head_width)
    per_layer = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    if isinstance(per_layer, ArrayValue) and per_layer.values is not None:
        cache_heads = sum(_integers(per_layer))
    else:
        cache_heads = layers * _hyperparameter(header, "attention.head_count_kv", default=heads)
    return cache_heads * (key_width + value_width) * CACHE_VALUE_BYTES


def largest_context(header: Header, *, limit: int, free_bytes: int) -> int:
    """The largest context, in steps of 256 tokens and at most `limit`, whose cache and buffers take `free_bytes`."""

    def fits(context_size: int) -> bool:
        estimate = estimate_memory(header, context_size, weights_bytes=0)
        return estimate.total_bytes <= free_bytes

    if fits(limit):
        return limit
    low, high = 0, limit // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * 256) else (low, middle - 1)
    return low * 256


def _compute_bytes(header: Header, context_size: int) -> int:
    """The larger of what one slice needs at a time: logits, or a mask. Fused attention keeps no scores."""
    rows = min(SLICE_TOKENS, context_size)
    width = _hyperparameter(header, "embedding_length")
    inner = _hyperparameter(header, "feed_forward_length")
    return 4 * rows * (max(vocabulary_size(header), context_size) + 2 * width + inner)


def _state_bytes(header: Header) -> int:
    """The recurrent state of the layers of a state-space model."""
    layers, inner = _hyperparameter(header, "block_count"), _hyperparameter(header, "ssm.inner_size")
    values = _hyperparameter(header, "ssm.state_size") + _hyperparameter(header, "ssm.conv_kernel")
    return layers * inner * values * 4


def vocabulary_size(header: Header) -> int:
    """How many tokens the model's vocabulary has; 0 when the file has none."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayValue) else _hyperparameter(header, "vocab_size")


def _hyperparameter(header: Header, name: str, *, default: int = 0) -> int:
    """The number under the architecture's `name`; of an array, one per layer, the largest; never below 0."""
    value = header.metadata.get(f"{header.architecture}.{name}")
    if isinstance(value, ArrayValue):
        value = max(_integers(value), default=default)
    return max(0, value) if isinstance(value, int) else default


def _integers(array: ArrayValue) -> list[int]:
    return [max(0, value) for value in array.values or () if isinstance(value, int)]
