"""Owns how much memory a model is going to take in this process: what the host is asked for before it is loaded.

It does not know how the host makes room, nor how the model is loaded.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck_gguf.loading import SMALLEST_CONTEXT, LoadSettings, own_context, weights_of
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import (
    cache_bytes_per_token,
    estimate_memory,
    largest_context,
    vocabulary_bytes,
    vocabulary_size,
)

USEFUL_CONTEXT: Final = 4096
"""Others are made to give way for a context of so many tokens, not for more that nobody asked for."""
LARGEST_UNFUSED_VECTORS: Final = 1024
"""Above it the scores of all pairs of tokens take more memory than they are worth: fused attention keeps none."""
PARKED_SHARE: Final = 4
"""What is parked takes at most this part of the memory that a model leaves free."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`size_bytes` of the machine's memory for a context of at most `context_limit` tokens (0: nothing limits it)."""

    size_bytes: int
    context_limit: int = 0
    parked_bytes: int = 0
    """Beside it, for what prompts begin with: a part of what is free then, nobody gives way for it."""


def plan_memory(
    headers: list[Header], settings: LoadSettings, *, budget_bytes: int, free_bytes: int, device_share: float = 0.0
) -> MemoryPlan:
    """What to reserve for the model of `headers` where `free_bytes` of the host's `budget_bytes` are free.

    A context that was asked for is planned as it is, whether it fits or not. Else it is the model's own, as far as half
    of what the weights leave of the free memory, and the useful one in any case. `device_share` of the model lies in a
    device's own memory, of which the host keeps no account.
    """
    first, weights_bytes = headers[0], weights_of(headers)
    own, words_bytes = own_context(first), vocabulary_bytes(headers[0])
    free_bytes, budget_bytes = free_bytes - words_bytes, budget_bytes - words_bytes

    def largest(limit: int, memory_bytes: int) -> int:
        return largest_context(first, limit=limit, free_bytes=max(0, memory_bytes))

    context_size = settings.context_size
    if not context_size:
        useful = min(own, USEFUL_CONTEXT)
        context_size = largest(own, (free_bytes - weights_bytes) // 2)
        if context_size < useful:
            context_size = max(largest(useful, budget_bytes - weights_bytes), min(own, SMALLEST_CONTEXT))
    total_bytes = estimate_memory(first, context_size, weights_bytes=weights_bytes).total_bytes
    size_bytes = int(total_bytes * (1.0 - device_share))
    parked_bytes = min(settings.parked_bytes, max(0, free_bytes - size_bytes) // PARKED_SHARE)
    limit = 0 if settings.context_size or device_share else context_size
    return MemoryPlan(size_bytes + words_bytes, limit, parked_bytes)


def vector_context_bytes(header: Header, tokens: int) -> int:
    """What a context takes that makes vectors of so many tokens at once, of a model of `header`.

    The engine computes logits of every token where the model has a way to make them, and has room for a copy in any
    case: for 49,152 words and 4,096 tokens 1.6 of the 1.7 GB that were measured.
    """
    has_logits = header.metadata.get(f"{header.architecture}.attention.causal") is not False
    width = header.integer(f"{header.architecture}.embedding_length") or 0
    inner = header.integer(f"{header.architecture}.feed_forward_length") or 0
    heads = header.integer(f"{header.architecture}.attention.head_count") or 0
    scores = heads * tokens if tokens <= LARGEST_UNFUSED_VECTORS else 0
    words = vocabulary_size(header)
    cells = cache_bytes_per_token(header) if has_logits else 0
    return tokens * (cells + 4 * (words + max(words * has_logits, scores) + 4 * width + inner))


def device_share(header: Header, gpu_layers: int, *, can_use_gpu: bool) -> float:
    """Which part of the model lies on the GPU, by its layers, the output being one more; below 0 all do."""
    if not can_use_gpu or not gpu_layers:
        return 0.0
    layers = (header.integer(f"{header.architecture}.block_count") or 0) + 1
    return 1.0 if gpu_layers < 0 else min(1.0, gpu_layers / layers)
