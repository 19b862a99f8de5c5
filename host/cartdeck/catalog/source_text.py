"""Owns what can be said of a model's source from its text alone.

It does not know whether the model exists; the models cartridge reads the text in full.
"""

import re
from typing import Final

_LONGEST: Final = 64 * 1024
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HUB_PAGE: Final = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[^/?#\s]+/[^/?#\s]+)"
    r"(?:/(?:blob|resolve|tree|raw)/(?P<revision>[^/?#\s]+)(?:/(?P<file>[^?#\s]+))?)?/?(?:[?#].*)?"
)
_PICKLE: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def check_source(text: str) -> str:
    """The text of a model's source. Raises ValueError that says what is wrong and what to write instead."""
    if not text.strip() or text != text.strip():
        raise ValueError("expected a model's spec without space around it, such as hf:owner/name:model.Q4_K_M.gguf")
    if len(text) > _LONGEST or any(ord(character) < 32 for character in text):
        raise ValueError("a spec is one line of at most 65536 characters")
    if (said := about_address(text)) is not None:
        raise ValueError(said)
    if text.partition("#")[0].lower().endswith(_PICKLE):
        raise ValueError("files of this kind can hold code and are never loaded; expected .gguf or .safetensors")
    return text


def about_address(text: str) -> str | None:
    """What is to be written in place of an address, such as that of a hub's page; None for a text that is none."""
    if not _ADDRESS.match(text):
        return None
    page = _HUB_PAGE.fullmatch(text)
    if page is None:
        return "this is an address, not a model; expected hf:owner/name[:FILE], pypi:…, package:… or a local path"
    revision = f"@{page['revision']}" if page["revision"] not in (None, "main") else ""
    file = f":{page['file']}" if page["file"] else ""
    return f"this is the address of a page, not of a model; write hf:{page['name']}{revision}{file}"
