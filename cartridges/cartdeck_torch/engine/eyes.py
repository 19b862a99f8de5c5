# pyright: basic
# Of transformers' names many have no types.
"""Owns which class a language model is, by whether it sees, and which eyes it has.

It does not know images.
"""

from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from cartdeck_modelkit.image import RgbImage
from cartdeck_torch.family import GRID_EYES, has_eyes
from cartdeck_torch.folder import ModelFolder


class Eyes(Protocol):
    """What a model that sees is given of images."""

    mark: str
    """The text that stands for an image in the model's template."""

    def read(self, text: str, images: list[RgbImage]) -> tuple[list[int], dict[str, Any]]:
        """The tokens of a text with `mark` for each image, and what the model's forward takes beside them."""
        ...


def language_class(folder: ModelFolder) -> Any:
    """transformers' class for the folder's language model."""
    return AutoModelForImageTextToText if has_eyes(folder) else AutoModelForCausalLM


def open_eyes(folder: ModelFolder, tokenizer: Tokenizer, device: torch.device, dtype: torch.dtype) -> Eyes | None:
    """The eyes of the folder's model; None for a model of texts alone. Raises `BAD_MODEL_FILE`."""
    if not has_eyes(folder):
        return None
    if folder.model_type in GRID_EYES:
        from cartdeck_torch.engine.grid_sight import GridSight  # noqa: PLC0415 - the one of the two that is needed

        return GridSight(folder, tokenizer, device, dtype)
    from cartdeck_torch.engine.sight import Sight  # noqa: PLC0415 - see above

    return Sight(folder, device, dtype)


def forget_places(model: Any) -> None:
    """Before another text: how far an image moves what follows it, Qwen's models keep from one text to the next."""
    inner: Any = getattr(model, "model", None)
    if getattr(inner, "rope_deltas", None) is not None:
        inner.rope_deltas = None
