"""Owns naming what a file is that should have been a GGUF model and is not.

It does not know how to read any of those kinds.
"""

_OLD_GGML = {b"ggml": "GGML", b"ggmf": "GGMF", b"ggjt": "GGJT", b"ggla": "GGLA (an old LoRA adapter)"}

_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, which stands for a file that was never fetched"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x89PNG", "a PNG image"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
)

FIRST_BYTES = 512
"""How many of a file's first bytes `name_kind` wants to see."""


def name_kind(first: bytes) -> str:
    """What a file with these `first` bytes is, as a noun phrase with its article."""
    if not first:
        return "an empty file"
    old = _OLD_GGML.get(first[:4].lower()) or _OLD_GGML.get(first[:4][::-1].lower())
    if old is not None:
        return f"a model in the old {old} format, from before GGUF"
    kinds = (kind for magic, kind in _MAGICS if first.startswith(magic))
    return next(kinds, None) or _text_kind(first) or f"data of an unknown kind, beginning with {first[:4].hex(' ')}"


def _text_kind(first: bytes) -> str | None:
    if first[8:10] == b'{"' and int.from_bytes(first[:8], "little") < 1 << 32:
        return "a safetensors file"
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if text[:1] == b"<":
        return "an XML or HTML text"
    if text[:1] in (b"{", b"["):
        return "a JSON text"
    return "a text" if all(byte >= 32 or byte in b"\t\r\n" for byte in first) else None
