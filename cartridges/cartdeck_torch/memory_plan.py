"""Owns how much of the machine's memory a model is going to take in this process: what the host is asked for.

It does not know how the host makes room.
"""

from typing import Final

from cartdeck_torch.family import CAUSAL, SEEING
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.settings import LoadSettings

LIBRARIES_BYTES: Final = 320 * 1024 * 1024
"""What torch and transformers take once they are imported: 250 MB measured, and some room."""
WORK_SHARE: Final = 0.15
"""What computing takes beside the weights, as a part of them."""
_COMPUTED_BYTES: Final = {"F16": 4, "BF16": 2, "F32": 4, "F64": 4}
_STORED_BYTES: Final = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_BYTES_OF_DTYPE: Final = {"float32": 4, "bfloat16": 2, "float16": 4}


USEFUL_CONTEXT: Final = 4096
"""Memory for the keys and values of so many tokens is asked for, where nobody asked for more or fewer."""


def plan_memory(folder: ModelFolder, settings: LoadSettings) -> int:
    """The bytes of memory for the model with its libraries, on a CPU, the caches of a language model and all
    ranks' processes included."""
    stored = _STORED_BYTES.get(folder.main_dtype, 4)
    computed = _BYTES_OF_DTYPE.get(settings.dtype, _COMPUTED_BYTES.get(folder.main_dtype, 4))
    weights = folder.size_bytes * computed // stored
    each = LIBRARIES_BYTES + int(weights * WORK_SHARE)  # of the processes, ranks of this machine
    return settings.tensor_parallel * each + weights + _cache_bytes(folder, settings, computed)


def _cache_bytes(folder: ModelFolder, settings: LoadSettings, bytes_each: int) -> int:
    """Of the keys and values of one text, as far as the configuration says how large they are."""
    if folder.model_type not in (*CAUSAL, *SEEING):
        return 0
    text = folder.text_config()

    def number(name: str, default: int) -> int:
        value = text.get(name)
        return value if type(value) is int and value > 0 else default

    heads = number("num_attention_heads", 1)
    width = number("head_dim", number("hidden_size", 0) // heads)
    context = settings.context_size or min(USEFUL_CONTEXT, number("max_position_embeddings", USEFUL_CONTEXT))
    per_token = 2 * number("num_hidden_layers", 0) * number("num_key_value_heads", heads) * width * bytes_each
    return per_token * context
