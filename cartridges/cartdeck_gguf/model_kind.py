"""Owns what kind of thing a GGUF file holds: a language model, an embedding model, a projector, an adapter.

It does not know what is done with it, nor whether an engine can.
"""

from typing import Final

from cartdeck_modelkit.gguf.header import Header
from cartdeck_protocol.errors import CartdeckError, Code, failure

PROJECTOR: Final = "a projector (mmproj)"
ADAPTER: Final = "a LoRA adapter"
NAMELESS: Final = "a GGUF file that names no architecture"
_KINDS: Final = {"adapter": ADAPTER, "mmproj": PROJECTOR, "imatrix": "an importance matrix"}


def kind_of_other(header: Header) -> str | None:
    """In words, what the file holds where that is no model; None for a model."""
    kind = _KINDS.get(header.text("general.type") or "model")
    if kind is None and header.architecture == "clip":
        return PROJECTOR
    return kind or (None if header.architecture else NAMELESS)


def check_is_model(header: Header, *, wanted: str) -> None:
    """Raises `BAD_MODEL_FILE`, with `found`, for a file that holds no model; `wanted` says what was expected."""
    found = kind_of_other(header)
    if found is not None:
        raise not_wanted(header, found, wanted)


def not_wanted(header: Header, found: str, wanted: str) -> CartdeckError:
    """The error for a file that holds something else than what was asked for."""
    return failure(
        Code.BAD_MODEL_FILE,
        f"{header.path} is {found}, not {wanted}",
        details={"found": found, "path": str(header.path)},
    )


def makes_vectors_only(header: Header) -> bool:
    """Whether the model sees its whole text at once, as an embedding model does, and so makes no text."""
    return header.metadata.get(f"{header.architecture}.attention.causal") is False
