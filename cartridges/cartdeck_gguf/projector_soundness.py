"""Owns the checks of a projector's header that the engine does not make kindly: it ends the process where these raise.

It does not know the engine's interface, nor whether a projector fits a model. Each check was seen to be needed.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

from cartdeck_gguf.soundness import unsound
from cartdeck_modelkit.gguf.header import Header

_COUNTS: Final = {
    "image_size": 65_536, "patch_size": 4096, "embedding_length": 1 << 20, "feed_forward_length": 1 << 24,
    "projection_dim": 1 << 20, "block_count": 512, "attention.head_count": 4096,
}  # fmt: skip
"""What is a whole number above 0, and at most this."""

_BLOCK: Final = "v.blk."
_PATCHES: Final = "v.patch_embd.weight"
_PLACES: Final = "v.position_embd.weight"
_FIXED_GRID: Final = frozenset({"mlp", "mlp_norm", "ldp", "ldpv2"})
_NO_PATCH_BIAS: Final = frozenset({"qwen2vl_merger", "qwen2.5vl_merger"})


def check_sound_projector(header: Header) -> None:
    """Raises `BAD_MODEL_FILE`, with `found`, for a header whose numbers or tensors would make the engine abort."""
    for found in (*_number_faults(header), *_tensor_faults(header)):
        raise unsound(header, found)


def _number_faults(header: Header) -> Iterator[str]:
    for name, most in _COUNTS.items():
        value = _value(header, name)
        if value is not None and not (type(value) is int and 0 <= value <= most):
            yield f"its {name} is {value!r:.40}, expected a whole number up to {most}"
        elif value == 0 and name in ("image_size", "patch_size", "embedding_length", "attention.head_count"):
            yield f"its {name} is 0"
    epsilon = _value(header, "attention.layer_norm_epsilon")
    if epsilon is not None and not (isinstance(epsilon, float) and math.isfinite(epsilon) and epsilon >= 0):
        yield f"its layer_norm_epsilon is {epsilon!r:.40}, and no negative number can be"  # ggml: eps >= 0.0f
    width, heads = _value(header, "embedding_length"), _value(header, "attention.head_count")
    if type(width) is int and type(heads) is int and heads > 0 and width % heads:
        yield f"its width of {width} is not shared out evenly among {heads} heads"


def _tensor_faults(header: Header) -> Iterator[str]:
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    for name in shapes:
        if name.endswith(".bias") and name.startswith(("v.", "mm.")) and f"{name[:-5]}.weight" not in shapes:
            yield f"it has {name} without its weight"
    yield from _block_faults(shapes)
    kind = header.text("clip.projector_type")
    patch, image = _value(header, "patch_size"), _value(header, "image_size")
    patches = shapes.get(_PATCHES)
    if patches is None:
        if any(name.startswith(_BLOCK) for name in shapes) and kind in _FIXED_GRID:
            yield f"it has no {_PATCHES}"
        return
    if type(patch) is int and patches[:2] != (patch, patch) and len(patches) == 4:
        yield f"its patches are {patches[0]} by {patches[1]}, and its header says {patch}"
    if kind in _NO_PATCH_BIAS and "v.patch_embd.bias" in shapes:
        yield f"a projector of the kind {kind} has no bias of its patches"
    if kind in _FIXED_GRID and type(patch) is int and type(image) is int and patch > 0:
        shape = shapes.get(_PLACES, ())
        places, needed = shape[1] if len(shape) > 1 else 0, (image // patch) ** 2
        if places < needed:
            yield f"it has places for {places} patches of an image, and there are {needed}"


def _block_faults(shapes: dict[str, Any]) -> Iterator[str]:
    """Every block has the same tensors."""
    blocks: dict[str, set[str]] = {}
    for name in shapes:
        if name.startswith(_BLOCK):
            number, _, rest = name.removeprefix(_BLOCK).partition(".")
            blocks.setdefault(number, set()).add(rest)
    everything = {name for names in blocks.values() for name in names}
    for number, names in blocks.items():
        missing = sorted(name for name in everything - names if name.startswith(("attn_", "ln", "ffn_")))
        if missing:
            yield f"its block {number} lacks {missing[0]}, which others have"


def _value(header: Header, name: str) -> Any:
    return header.metadata.get(f"clip.vision.{name}")
