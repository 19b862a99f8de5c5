"""Owns the library: the one module that imports it. It does not know calls."""
# pyright: basic
# The library has no types.

import importlib.metadata
from dataclasses import dataclass
from typing import Any

from cartdeck_protocol.errors import Code, failure

DISTRIBUTION = "rapidocr-onnxruntime"


@dataclass(frozen=True, slots=True)
class Page:
    """An image, decoded, and where lines were found: four corners each, in pixels, from top to bottom."""

    pixels: Any
    boxes: list[list[list[float]]]


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    confidence: float


class Reader:
    """The three networks (lines, their direction, their text), in memory."""

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR  # noqa: PLC0415  # the heavy library

        self._engine = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
        self.version = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"

    def find(self, image: bytes) -> Page:
        """Where the lines are. BAD_IMAGE for bytes that are no image."""
        try:
            pixels = self._engine.load_img(image)
        except Exception as error:
            message = (
                f"found {len(image)} bytes that are no image ({type(error).__name__}), expected PNG, JPEG, WebP or BMP"
            )
            raise failure(Code.BAD_IMAGE, message, argument="image") from None
        found, _ = self._engine(pixels, use_det=True, use_cls=False, use_rec=False)
        boxes = [[[float(x), float(y)] for x, y in box] for box in found or []]
        return Page(pixels, sorted(boxes, key=lambda box: (round(min(y for _, y in box) / 10), min(x for x, _ in box))))

    def read(self, page: Page, box: list[list[float]]) -> Line | None:
        """The text in one of the boxes; None where there is none after all."""
        import numpy as np  # noqa: PLC0415  # the heavy library

        [crop] = self._engine.get_crop_img_list(page.pixels, np.array([box], dtype=np.float32))
        read, _ = self._engine(crop, use_det=False, use_cls=True, use_rec=True)
        if not read:
            return None
        text, confidence = read[0][0], float(read[0][1])
        return Line(text, round(confidence, 4)) if text.strip() else None
