"""Owns how much of the machine's memory a model is going to take in this process: what the host is asked for.

It does not know how the host makes room.
"""

from typing import Final

from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.settings import LoadSettings

LIBRARIES_BYTES: Final = 320 * 1024 * 1024
"""What torch and transformers take once they are imported: 250 MB measured, and some room."""
WORK_SHARE: Final = 0.15
"""What computing takes beside the weights, as a part of them."""
_COMPUTED_BYTES: Final = {"F16": 4, "BF16": 2, "F32": 4, "F64": 4}
_STORED_BYTES: Final = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_BYTES_OF_DTYPE: Final = {"float32": 4, "bfloat16": 2, "float16": 4}


def plan_memory(folder: ModelFolder, settings: LoadSettings, *, cache_bytes: int = 0) -> int:
    """The bytes of memory for the model with its libraries, on a CPU."""
    stored = _STORED_BYTES.get(folder.main_dtype, 4)
    computed = _BYTES_OF_DTYPE.get(settings.dtype, _COMPUTED_BYTES.get(folder.main_dtype, 4))
    weights = folder.size_bytes * computed // stored
    return LIBRARIES_BYTES + int(weights * (1 + WORK_SHARE)) + cache_bytes
