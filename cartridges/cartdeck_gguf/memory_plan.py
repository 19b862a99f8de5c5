"""Owns how much memory a model is going to take in this process: what the host is asked for before it is loaded.

It does not know how the host makes room, nor how the model is loaded.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck_gguf.loading import SMALLEST_CONTEXT, LoadSettings, own_context, weights_of
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import estimate_memory, largest_context

USEFUL_CONTEXT: Final = 4096
"""Others are made to give way for a context of so many tokens, not for more that nobody asked for."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`size_bytes` of the machine's memory for a context of at most `context_limit` tokens (0: nothing limits it)."""

    size_bytes: int
    context_limit: int = 0


def plan_memory(
    headers: list[Header], settings: LoadSettings, *, budget_bytes: int, free_bytes: int, device_share: float = 0.0
) -> MemoryPlan:
    """What to reserve for the model of `headers` where `free_bytes` of the host's `budget_bytes` are free.

    A context that was asked for is planned as it is, whether it fits or not. Else it is the model's own, as far as half
    of what the weights leave of the free memory, and the useful one in any case. `device_share` of the model lies in a
    device's own memory, of which the host keeps no account.
    """
    first, weights_bytes = headers[0], weights_of(headers)
    own = own_context(first)

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
    return MemoryPlan(size_bytes, 0 if settings.context_size or device_share else context_size)


def device_share(header: Header, gpu_layers: int, *, can_use_gpu: bool) -> float:
    """Which part of the model lies on the GPU, by its layers, the output being one more; below 0 all do."""
    if not can_use_gpu or not gpu_layers:
        return 0.0
    layers = (header.integer(f"{header.architecture}.block_count") or 0) + 1
    return 1.0 if gpu_layers < 0 else min(1.0, gpu_layers / layers)
