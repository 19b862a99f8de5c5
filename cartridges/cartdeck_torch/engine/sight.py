# pyright: basic
# Of transformers' names many have no types.
"""Owns what models that see are given of images: pixels prepared once, and the tokens that keep their places.

It does not know image files nor dialogues. The library's processor on Pillow is used whether torchvision is there or
not, so that the same image gives the same numbers everywhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoProcessor

from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.engine.pixels import check_sizes
from cartdeck_torch.folder import ModelFolder


class Sight:
    """The eyes of one model; `mark` is the text that stands for an image in its template."""

    def __init__(self, folder: ModelFolder, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        check_sizes(folder)
        try:
            self._processor: Any = AutoProcessor.from_pretrained(
                str(folder.path), local_files_only=True, trust_remote_code=False, backend="pil"
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            message = f"{folder.path} does not say how its model sees: {str(error).splitlines()[0][:300]}"
            raise failure(Code.BAD_MODEL_FILE, message, phase="load") from error
        mark = getattr(self._processor, "image_token", None)
        if not isinstance(getattr(mark, "content", mark), str) or not mark:
            raise failure(Code.BAD_MODEL_FILE, f"the processor of {folder.path} has no token for images", phase="load")
        self.mark = str(mark)

    def read(self, text: str, images: Sequence[RgbImage]) -> tuple[list[int], dict[str, Any]]:
        """The tokens of a text with `mark` for each image, and what the model's forward takes beside them. Raises
        `BAD_IMAGE` for an image that the processor cannot take."""
        pictures = [np.frombuffer(one.pixels, np.uint8).reshape(one.height, one.width, 3) for one in images]
        try:
            made = self._processor(
                text=[text],
                images=[pictures],
                add_special_tokens=False,
                return_tensors="pt",
                input_data_format="channels_last",
            )
        except CartdeckError:
            raise
        except (ValueError, TypeError, ZeroDivisionError, IndexError) as error:
            message = f"the model cannot take an image: {str(error)[:300]}"
            raise failure(Code.BAD_IMAGE, message, argument="image", phase="inference") from error
        ids = made.pop("input_ids")[0].tolist()
        made.pop("attention_mask", None)
        return ids, {name: self._moved(value) for name, value in made.items() if isinstance(value, torch.Tensor)}

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._device, self._dtype if value.is_floating_point() else None)
