"""Owns the checks of a header that the engine does not make kindly: it ends the process where these raise an error.

It does not know llama.cpp's interface; each check names the assertion of llama.cpp that it stands before.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

from cartdeck_modelkit.gguf.header import ArrayValue, Header
from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_LAYERS: Final = 512
MOST_EXPERTS: Final = 1024
TENSOR_ALIGNMENT: Final = 32
_ROPE_SCALINGS: Final = ("none", "linear", "yarn", "longrope")
_EXPERTS: Final = ("expert_count", "expert_used_count")
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("bailingmoe2", "glm4moe", "grovemoe", "lfm2moe", "llada-moe", "smallthinker"), _EXPERTS),
    "hrm_text": ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"),
}
"""By architecture, the numbers that must be above 0."""
_TWICE_AS_WIDE: Final = frozenset({"jamba", "granitehybrid"})
"""Architectures whose state-space layers are twice as wide as the model, and nothing else."""
_NORMS: Final = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon")


def check_sound(header: Header) -> None:
    """Raises `BAD_MODEL_FILE`, with `found`, for a header whose numbers would make the engine abort."""
    for found in _faults(header):
        raise unsound(header, found)


def unsound(header: Header, found: str) -> CartdeckError:
    """The error for a model file that says something no engine can work with."""
    return failure(
        Code.BAD_MODEL_FILE,
        f"{header.path} is no model that can be run: {found}",
        phase="load",
        details={"found": found, "path": str(header.path)},
    )


def _faults(header: Header) -> Iterator[str]:
    layers = _value(header, "block_count")
    if layers is not None and not _is_count(layers, 1, MOST_LAYERS):
        yield f"it has {layers} layers, and 1 to {MOST_LAYERS} are possible"  # n_layer_all > 0 && <= LLAMA_MAX_LAYERS
    for name in _NORMS:
        value = _value(header, name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            yield f"its {name} is {value}, and no negative number can be"  # ggml: eps >= 0.0f
    predicted = _largest(header, "nextn_predict_layers")
    if type(layers) is int and predicted > layers:
        yield f"{predicted} of its {layers} layers predict further tokens"  # n_layer_nextn <= n_layer_all
    scaling = _value(header, "rope.scaling.type")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALINGS:
        yield f"its rope scaling is {scaling[:40]!r}, expected {', '.join(_ROPE_SCALINGS)}"
    if any((header.data_offset + tensor.offset) % TENSOR_ALIGNMENT for tensor in header.tensors):
        yield f"its tensors do not begin at multiples of {TENSOR_ALIGNMENT} bytes"  # ggml-backend.cpp
    yield from _expert_faults(header)
    yield from _architecture_faults(header)


def _architecture_faults(header: Header) -> Iterator[str]:
    """What single architectures assert of their own numbers: models/*.cpp of llama.cpp."""
    name = header.architecture
    for key in _NEEDED.get(name, ()):
        if _largest(header, key) <= 0:
            yield f"its {key} is not above 0, and a model of {name} needs it"
    width, inner = _largest(header, "embedding_length"), _largest(header, "ssm.inner_size")
    if name in _TWICE_AS_WIDE and inner != 2 * width:
        yield f"its ssm.inner_size is {inner}, and {2 * width} is what its width of {width} needs"


def _expert_faults(header: Header) -> Iterator[str]:
    """llama-model.cpp: n_expert, n_expert_used, n_expert_groups and n_group_used must agree."""
    if header.architecture.startswith("hunyuan") and _largest(header, "expert_count") <= 1:
        return  # the engine counts one expert as none there
    experts, used = _largest(header, "expert_count"), _largest(header, "expert_used_count")
    groups, groups_used = _largest(header, "expert_group_count"), _largest(header, "expert_group_used_count")
    if experts > MOST_EXPERTS or used > experts or (experts > 0) != (used > 0):
        yield f"it uses {used} of {experts} experts, and at most {MOST_EXPERTS} are possible"
    is_grouped = groups > 1
    if groups and groups >= max(experts, 1):
        yield f"it puts {experts} experts into {groups} groups"
    elif is_grouped and (experts % groups or not 0 < groups_used < groups):
        yield f"it uses {groups_used} of {groups} groups of {experts} experts"


def _value(header: Header, name: str) -> Any:
    return header.metadata.get(f"{header.architecture}.{name}")


def _is_count(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _largest(header: Header, name: str) -> int:
    value = _value(header, name)
    if isinstance(value, ArrayValue):
        return max((one for one in value.values or () if type(one) is int), default=0)
    return value if type(value) is int else 0
