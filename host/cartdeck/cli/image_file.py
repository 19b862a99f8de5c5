"""Owns what is seen of an image's file before a model is loaded for it: that it is empty, or a text.

It does not know image formats: whatever else it is, the cartridge that looks at it says so.
"""

import codecs
from pathlib import Path
from typing import Final

from cartdeck_protocol.errors import Code, failure

BEGINNING_BYTES: Final = 512
"""The part of a file that is looked at: images have bytes in it that no text has."""
_TEXTUAL: Final = (*(b"P%d" % number for number in range(1, 8)), b"Pf", b"PF", b"/* XPM", b"#define")
"""Images whose files begin as texts do."""


def check_image_file(path: Path) -> None:
    """As `check_image_bytes`, of a file that can be read twice; any other one, and what cannot be read, is passed."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            data = file.read(BEGINNING_BYTES)
    except OSError:
        return
    check_image_bytes(data, path)


def check_image_bytes(data: bytes, path: Path) -> None:
    """Raises EMPTY_INPUT for no bytes and BAD_IMAGE for a text."""
    if not data:
        raise failure(Code.EMPTY_INPUT, f"{path}: the file is empty, expected an image", argument="image")
    beginning = data[:BEGINNING_BYTES]
    if _is_text(beginning) and not beginning.startswith(_TEXTUAL):
        message = f"{path}: this is a text, expected an image: PNG, JPEG, GIF, WEBP, BMP or TIFF"
        raise failure(Code.BAD_IMAGE, message, argument="image")


def _is_text(beginning: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning)  # its last character may be cut off
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\n\r\f\ufeff" for letter in text)
