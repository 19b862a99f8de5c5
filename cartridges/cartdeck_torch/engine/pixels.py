# pyright: basic
# Of transformers' names many have no types.
"""Owns the way from an RGB image to the numbers that a vision tower takes, as the model's own files say.

It does not know image files nor models. The library's processor on Pillow is used whether torchvision is there or not,
so that the same image gives the same numbers everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BlipImageProcessorPil, CLIPImageProcessorPil

from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.folder import ModelFolder

_KINDS = {"clip": CLIPImageProcessorPil, "blip": BlipImageProcessorPil}
_LARGEST_SIDE = 4096


class PixelReader:
    """Scales, cuts and normalizes images for one model."""

    def __init__(self, folder: ModelFolder) -> None:
        self._processor = _KINDS[folder.model_type](**_settings(folder))

    def read(self, images: Sequence[RgbImage]) -> torch.Tensor:
        """float32 [images, 3, height, width]."""
        arrays = [np.frombuffer(one.pixels, np.uint8).reshape(one.height, one.width, 3) for one in images]
        parts = [self._processor(one, return_tensors="pt", input_data_format="channels_last") for one in arrays]
        return torch.cat([part["pixel_values"] for part in parts])


def check_sizes(folder: ModelFolder) -> Mapping[str, Any]:
    """What the folder says of how images are prepared. Raises `BAD_MODEL_FILE` where it says nothing, or has them made
    larger than any model takes."""
    record = read_preparation(folder)
    for name in ("size", "crop_size", "max_image_size"):
        sides = record.get(name)
        values = list(sides.values()) if isinstance(sides, Mapping) else [] if sides is None else [sides]
        if any(type(side) is not int or not 0 < side <= _LARGEST_SIDE for side in values):
            raise failure(Code.BAD_MODEL_FILE, f"{folder.path} has an image {name} of {sides!r}", phase="load")
    return record


def read_preparation(folder: ModelFolder) -> Mapping[str, Any]:
    """What the folder says of how images are prepared, unchecked. Raises `BAD_MODEL_FILE` where it says nothing."""
    record = folder.image_preparation
    if record is None:
        raise failure(Code.BAD_MODEL_FILE, f"{folder.path} says nothing of how images are prepared", phase="load")
    return record


def _settings(folder: ModelFolder) -> dict[str, Any]:
    record = check_sizes(folder)
    known = (
        "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
        "image_mean", "image_std",
    )  # fmt: skip
    return {name: record[name] for name in known if name in record}
