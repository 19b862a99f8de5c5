"""Owns which file names are safe to make a path of: relative, inside their folder, the same on every system.

It does not know where a name came from; it never touches the file system.
"""

import re

from cartdeck_protocol.errors import CartdeckError, Code, failure

MAX_PART_BYTES = 255
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PART_SUFFIX = re.compile(r"\.(part[-_.]?\d+|\d{3})$")


def check_text(text: str) -> None:
    """Refuse what no path of any kind may hold: NUL and other control characters. Raises UNSAFE_FILENAME."""
    if _CONTROL.search(text):
        raise unsafe(text, "it holds a control character")


def check_relative(name: str) -> str:
    """Give `name` back if it is a plain relative name with `/` between its parts; a trailing `/` is allowed.

    Raises UNSAFE_FILENAME for `..`, an absolute name, a drive letter, a UNC name, a backslash or a control character.
    """
    check_text(name)
    if "\\" in name:
        raise unsafe(name, "it holds a backslash")
    if name.startswith("/"):
        raise unsafe(name, "it is absolute")
    if _DRIVE.match(name):
        raise unsafe(name, "it begins with a drive letter")
    for part in name.removesuffix("/").split("/"):
        if part in ("", ".", ".."):
            raise unsafe(name, f"its part '{part}' is not a plain name")
        if len(part.encode("utf-8", "surrogateescape")) > MAX_PART_BYTES:
            raise unsafe(name, f"a part of it is longer than {MAX_PART_BYTES} bytes")
    return name


def unsafe(name: str, reason: str) -> CartdeckError:
    shown = name if len(name) <= 200 else name[:200] + "…"
    return failure(
        Code.UNSAFE_FILENAME,
        f"The file name {shown!r} is not safe: {reason}. Expected a relative name such as folder/model.gguf.",
        argument="model",
    )


def last_part(name: str) -> str:
    return name.removesuffix("/").rpartition("/")[2]


def joined_name(first: str) -> str:
    """The name of the whole that `first` is the first part of: `a/model.bin.part1` gives `model.bin`."""
    return _PART_SUFFIX.sub("", last_part(first)) or last_part(first)
