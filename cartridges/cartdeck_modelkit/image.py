"""Owns turning the bytes of an image file into pixels: RGB, upright, of a workable size, or a clear error.

It does not know what looks at them. Bytes come from anywhere, so the format is found by its content alone, among those
that are safe to open, and its size is looked at before its pixels are. The one module that imports Pillow.
"""

import struct
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from PIL import Image

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO")
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_PIXELS: Final = 100_000_000
"""A photograph of the largest cameras; a hundredth of it in a file may be a bomb of all zeros."""

LARGEST_SIDE: Final = 4096
"""Pixels; a larger image is scaled down to it, its shape kept. No model sees more of one image."""

_DEEP_MODES: Final = frozenset({"I;16", "I;16B", "I;16L", "I;16N", "I", "F"})


@dataclass(frozen=True, slots=True)
class RgbImage:
    """`pixels` holds `width` times `height` pixels of three bytes, red, green, blue, row by row from the top. They are
    those of the first of `frames`."""

    width: int
    height: int
    pixels: bytes
    frames: int = 1


def decode_image(data: bytes, *, argument: str = "image") -> RgbImage:
    """The image in `data`: the first frame of an animated one, upright as its EXIF data says, on white where it is
    transparent, 16 bits scaled to 8. For a worker thread: a large image takes a second.

    Raises `EMPTY_INPUT` for no bytes, and `BAD_IMAGE` for what is no image, damaged or too large.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415 - only when there is an image

    if not data:
        raise failure(Code.EMPTY_INPUT, "the image has no bytes", argument=argument)
    if len(data) > MOST_BYTES:
        raise _refused(f"it has {len(data):,} bytes, and at most {MOST_BYTES:,} are taken", argument)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size that Pillow finds suspicious is judged below
            with Image.open(BytesIO(data), formats=FORMATS) as opened:
                _check_size(opened.size, argument)
                opened.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))
                opened.load()
                image = _eight_bits(opened)
                image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
                image = _on_white(ImageOps.exif_transpose(image))
            frames = _count_frames(data)
    except CartdeckError:
        raise
    except Image.DecompressionBombError:
        raise _refused(f"it has more than {MOST_PIXELS:,} pixels", argument) from None
    except Image.UnidentifiedImageError:
        start = data[:16].hex(" ")
        known = ", ".join(FORMATS)
        raise _refused(f"its bytes begin with {start}, expected one of {known}", argument) from None
    except MemoryError:
        raise failure(Code.OUT_OF_MEMORY, "there is not enough memory for the image", argument=argument) from None
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, struct.error) as error:
        raise _refused(f"it is damaged ({error})", argument) from None
    return RgbImage(image.width, image.height, image.tobytes(), frames)


def _count_frames(data: bytes) -> int:
    """How many frames there are; 1 where damage behind the first one leaves their number open."""
    from PIL import Image  # noqa: PLC0415 - as above

    try:
        with Image.open(BytesIO(data), formats=FORMATS) as again:
            return int(getattr(again, "n_frames", 1))
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, struct.error):
        return 1


def _check_size(size: tuple[int, int], argument: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise _refused(f"it is {width} by {height} pixels", argument)
    if width * height > MOST_PIXELS:
        raise _refused(f"it is {width:,} by {height:,} pixels, and at most {MOST_PIXELS:,} are taken", argument)


def _eight_bits(image: "Image.Image") -> "Image.Image":
    """The image with 8 bits a channel: of a deeper one, as many of its levels as there are."""
    if image.mode not in _DEEP_MODES:
        return image
    exif = image.getexif()
    deep: Any = image.convert("F")
    low, high = deep.getextrema()
    top = 65535.0 if high > 255 or image.mode.startswith("I;16") else 255.0
    if low < 0 or high > top:  # numbers of no known range: all of them are spread over the levels
        shift, scale = -low, 255.0 / max(high - low, 1e-9)
    else:
        shift, scale = 0.0, 255.0 / top

    def levels(level: Any) -> Any:
        return level * scale + shift * scale

    grey: Any = deep.point(levels).convert("L")
    grey.info["exif"] = exif.tobytes()
    return grey


def _on_white(image: "Image.Image") -> "Image.Image":
    """RGB, what is transparent shown on white."""
    from PIL import Image  # noqa: PLC0415 - as above

    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(ground, layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def _refused(what: str, argument: str) -> CartdeckError:
    return failure(Code.BAD_IMAGE, f"the image cannot be taken: {what}", argument=argument)
