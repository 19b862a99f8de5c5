# pyright: basic
# Of transformers' names many have no types.
"""Owns what Qwen's models are given of images: patches of a grid as large as the image is, and a token for each four.

It does not know image files nor dialogues. transformers' own processor for these models wants torchvision, which takes
videos apart; of images alone its part on Pillow is enough.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import Qwen2VLImageProcessorPil

from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.engine.pixels import read_preparation
from cartdeck_torch.folder import ModelFolder

_KNOWN = (
    "size", "min_pixels", "max_pixels", "resample", "rescale_factor", "image_mean", "image_std", "patch_size",
    "temporal_patch_size", "merge_size",
)  # fmt: skip
_SIDES = ("patch_size", "temporal_patch_size", "merge_size")
_MOST_PIXELS = 4096 * 4096
_LARGEST_PATCH = 128


class GridSight:
    """The eyes of one model; `mark` is the text that stands for an image in its template."""

    def __init__(self, folder: ModelFolder, tokenizer: Tokenizer, device: torch.device, dtype: torch.dtype) -> None:
        self._tokenizer, self._device, self._dtype = tokenizer, device, dtype
        record = read_preparation(folder)
        _check(folder, record)
        self._processor = Qwen2VLImageProcessorPil(**{name: record[name] for name in _KNOWN if name in record})
        self._token = folder.config.get("image_token_id")
        mark = tokenizer.id_to_token(self._token) if type(self._token) is int and self._token >= 0 else None
        if not mark:
            raise failure(Code.BAD_MODEL_FILE, f"{folder.path} has no token for images", phase="load")
        self.mark = mark

    def read(self, text: str, images: Sequence[RgbImage]) -> tuple[list[int], dict[str, Any]]:
        """As `Sight.read`."""
        pictures = [np.frombuffer(one.pixels, np.uint8).reshape(one.height, one.width, 3) for one in images]
        try:
            made = self._processor(pictures, return_tensors="pt", input_data_format="channels_last")
        except (ValueError, TypeError, ZeroDivisionError, IndexError) as error:
            message = f"the model cannot take an image: {str(error)[:300]}"
            raise failure(Code.BAD_IMAGE, message, argument="image", phase="inference") from error
        each = self._processor.merge_size**2
        counts = (int(grid.prod()) // each for grid in made["image_grid_thw"])
        ids = self._tokenizer.encode(self._widened(text, counts), add_special_tokens=False).ids
        return ids, {
            "pixel_values": made["pixel_values"].to(self._device, self._dtype),
            "image_grid_thw": made["image_grid_thw"].to(self._device),
            "mm_token_type_ids": torch.tensor([[int(one == self._token) for one in ids]], device=self._device),
        }

    def _widened(self, text: str, counts: Iterator[int]) -> str:
        """The text with each image's mark as often as it has tokens."""
        first, *parts = text.split(self.mark)
        return first + "".join(self.mark * next(counts) + part for part in parts)


def _check(folder: ModelFolder, record: Mapping[str, Any]) -> None:
    """Raises `BAD_MODEL_FILE` for sizes that no model has."""
    size = record.get("size")
    pixels = [*size.values()] if isinstance(size, Mapping) else [] if size is None else [size]
    pixels += [record[name] for name in ("min_pixels", "max_pixels") if record.get(name) is not None]
    sides = [record[name] for name in _SIDES if name in record]
    for values, most in ((pixels, _MOST_PIXELS), (sides, _LARGEST_PATCH)):
        if any(type(one) is not int or not 0 < one <= most for one in values):
            raise _bad(folder, f"sizes of images of {values!r}"[:300])


def _bad(folder: ModelFolder, found: str) -> CartdeckError:
    return failure(Code.BAD_MODEL_FILE, f"{folder.path} has {found}", phase="load")
