# pyright: basic
# Of torch's names many have no types.
"""Owns CLIP: vectors of images and of texts in one space (Radford et al. 2021).

It does not know image files: pixels come in, RGB.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import CLIPModel

from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.batching import equal_runs
from cartdeck_torch.engine.loading import load_weights
from cartdeck_torch.engine.pixels import PixelReader
from cartdeck_torch.engine.tokens import TextTokens, Tokens
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.pooling import embedding_shape
from cartdeck_torch.settings import LoadSettings

_UNUSED = ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")


class ClipEmbedder:
    """Both towers of a CLIP model on their device."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.shape = embedding_shape(folder)
        self.tokens = TextTokens(folder, max_tokens=self.shape.max_tokens)
        self.pixels = PixelReader(folder)
        self.model, dtype, self.notice = load_weights(
            CLIPModel, folder, settings, device, report=report, unused=_UNUSED
        )
        self.tokens.vocabulary_size = self.model.text_model.get_input_embeddings().weight.shape[0]
        self.device, self.torch_dtype = device.device, dtype
        self.dtype = str(dtype).removeprefix("torch.")

    def encode(self, texts: Sequence[str], *, truncate: str) -> tuple[list[Tokens], int | None]:
        """As `TextTokens.encode`."""
        return self.tokens.encode(texts, truncate=truncate)

    def embed(self, batch: Sequence[Sequence[int]], *, pooling: str | None, normalize: bool) -> list[bytes | None]:
        """The vector of each text of the batch, as `TextEmbedder.embed`. Raises `UNSUPPORTED` for a `pooling`."""
        if pooling is not None:
            message = "a CLIP model gives one vector for a text itself: leave pooling out"
            raise failure(Code.UNSUPPORTED, message, argument="pooling")
        parts = []
        first = 0
        with torch.inference_mode():
            for count, _ in equal_runs([len(ids) for ids in batch]):
                ids = torch.tensor([list(one) for one in batch[first : first + count]], device=self.device)
                parts.append(self.model.get_text_features(input_ids=ids).pooler_output)
                first += count
            return _packed(torch.cat(parts), normalize=normalize)

    def embed_images(self, images: Sequence[RgbImage], *, normalize: bool) -> list[bytes | None]:
        """The vector of each image, little-endian float32; None for one that holds numbers that are not finite."""
        with torch.inference_mode():
            values = self.pixels.read(images).to(self.device, self.torch_dtype)
            return _packed(self.model.get_image_features(pixel_values=values).pooler_output, normalize=normalize)


def _packed(vectors: Any, *, normalize: bool) -> list[bytes | None]:
    vectors = vectors.float()
    if normalize:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    rows = vectors.cpu().numpy().astype("<f4")
    return [row.tobytes() if np.isfinite(row).all() else None for row in rows]
