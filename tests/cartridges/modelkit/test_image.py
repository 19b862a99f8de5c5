"""Bytes of image files become upright RGB pixels, or one clear error."""

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from cartdeck_modelkit.image import LARGEST_SIDE, MOST_BYTES, decode_image
from cartdeck_protocol.errors import CartdeckError, Code


def written(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def first_pixel(data: bytes) -> tuple[int, ...]:
    image = decode_image(data)
    assert len(image.pixels) == 3 * image.width * image.height
    return tuple(image.pixels[:3])


def error_of(data: bytes) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        decode_image(data)
    return caught.value


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_common_formats_are_found_by_their_content(kind: str) -> None:
    data = written(Image.new("RGB", (8, 4), (250, 10, 10)), kind)
    image = decode_image(data)
    assert (image.width, image.height) == (8, 4)
    assert all(abs(found - wanted) < 8 for found, wanted in zip(image.pixels[:3], (250, 10, 10), strict=True))


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), {}),
        (Image.new("LA", (4, 4), (0, 0)), {}),
        (Image.new("P", (4, 4), 0), {"transparency": 0}),
        (Image.new("1", (4, 4), 1), {}),
    ],
)
def test_what_is_transparent_is_shown_on_white(image: Image.Image, options: dict[str, Any]) -> None:
    assert first_pixel(written(image, **options)) == (255, 255, 255)


@pytest.mark.parametrize(("level", "wanted"), [(0, 0), (32_768, 127), (65_535, 255)])
def test_sixteen_bits_are_scaled_not_cut(level: int, wanted: int) -> None:
    assert first_pixel(written(Image.new("I;16", (4, 4), level))) == (wanted,) * 3


def test_an_image_is_turned_as_its_exif_data_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (8, 4), "blue")
    image.paste((255, 0, 0), (0, 0, 4, 4))  # red on the left: on top once it is turned
    for kind in ("JPEG", "PNG"):
        decoded = decode_image(written(image, kind, exif=exif))
        assert (decoded.width, decoded.height) == (4, 8)
        assert decoded.pixels[0] > 150
        assert decoded.pixels[-1] > 150


def test_of_an_animated_image_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")]
    assert first_pixel(written(frames[0], "GIF", save_all=True, append_images=frames[1:])) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_frames_of_an_animated_image_are_counted(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), (20 * index, 0, 0)) for index in range(12)]
    assert decode_image(written(frames[0], kind, save_all=True, append_images=frames[1:])).frames == 12
    assert decode_image(written(frames[0], kind)).frames == 1


def test_a_large_image_is_scaled_down_and_keeps_its_shape() -> None:
    decoded = decode_image(written(Image.new("1", (9000, 3000), 1)))
    assert (decoded.width, decoded.height) == (LARGEST_SIDE, round(LARGEST_SIDE / 3))


def test_a_bomb_is_refused_before_its_pixels_are_made() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))
    assert error_of(bomb).code is Code.BAD_IMAGE
    assert "pixels" in error_of(written(Image.new("1", (20_000, 6_000), 1))).message
    assert error_of(b"BM" + bytes(MOST_BYTES)).code is Code.BAD_IMAGE


def test_what_is_no_image_says_what_was_found() -> None:
    assert error_of(b"").code is Code.EMPTY_INPUT
    for data in (b"<html>", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0" * 64):
        error = error_of(data)
        assert (error.code, error.argument) == (Code.BAD_IMAGE, "image")
        assert data[:4].hex(" ") in error.message


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_file_that_is_cut_or_damaged_anywhere_is_one_error_or_an_image(kind: str) -> None:
    noise = Image.effect_noise((32, 32), 80).convert("RGB")
    whole = written(noise, kind)
    for place in range(1, len(whole), max(1, len(whole) // 60)):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        for data in (whole[:place], bytes(broken)):
            assert outcome_of(data) in (None, Code.BAD_IMAGE, Code.EMPTY_INPUT)


def outcome_of(data: bytes) -> Code | None:
    try:
        decode_image(data)
    except CartdeckError as error:
        return error.code
    return None
