"""Owns how many of a model's layers lie on a GPU, and how large its context is then: from the estimate of its memory.

It does not know how the engine is asked what the GPU has free.
"""

from dataclasses import replace
from typing import Final

from cartdeck_gguf.loading import LoadSettings, own_context, weights_of
from cartdeck_gguf.memory_plan import USEFUL_CONTEXT
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.hyperparameters import Hyperparameters
from cartdeck_modelkit.gguf.memory import estimate_memory, largest_context

USED_SHARE: Final = 0.9
"""Of what a GPU has free: the driver's own buffers and scraps between others take the rest."""


def plan_offload(headers: list[Header], settings: LoadSettings, *, device_bytes: int | None) -> LoadSettings:
    """The settings with as many layers on the GPU as its `device_bytes` of free memory take, where the caller left that
    open (below 0). None: there is no GPU, or nothing is known of it; nothing changes.

    Where all layers fit with a useful context, one that nobody asked for is as large as half of what they leave.
    """
    if device_bytes is None or settings.gpu_layers >= 0:
        return settings
    first, weights_bytes = headers[0], weights_of(headers)
    usable_bytes, own = int(device_bytes * USED_SHARE), own_context(first)
    context_size = settings.context_size or min(own, USEFUL_CONTEXT)
    whole = estimate_memory(first, context_size, weights_bytes=weights_bytes)
    layers = Hyperparameters(first).number("block_count") + 1  # the output is one more
    if whole.total_bytes > usable_bytes:
        of_layer = (whole.weights_bytes + whole.cache_bytes) / layers
        fitting = int(max(0, usable_bytes - whole.compute_bytes) / of_layer) if of_layer else 0
        return replace(settings, gpu_layers=min(fitting, layers - 1))
    if settings.context_size:
        return replace(settings, gpu_layers=layers)
    roomy = largest_context(first, limit=own, free_bytes=max(0, usable_bytes - weights_bytes) // 2)
    return replace(settings, gpu_layers=layers, context_limit=max(roomy, context_size))
