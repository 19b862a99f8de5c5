"""Owns what a repository offers: its candidates as fit-model judged them, and what each engine says of them.

It does not know which one is taken, nor how any of it was asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cartdeck.size import size_text

Format = Literal["gguf", "safetensors"]
BACKENDS: Final[Mapping[Format, str]] = {"gguf": "gguf", "safetensors": "torch"}
"""The tag of the cartridge that runs models of a format."""
_WEIGHTS: Final = ".safetensors"
USEFUL_CONTEXT: Final = 4096
"""Tokens for which fit-model calls a model one that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Files of a repository that are one model. `fits` is None where the memory is not known."""

    path: str
    """What names it in a spec: the GGUF file, or the first file of the weights."""
    format: Format
    files: tuple[str, ...]
    quantization: str | None
    architecture: str | None
    """None where it could not be read without fetching the model."""
    size_bytes: int
    missing_bytes: int
    memory_bytes: int
    least_bytes: int
    """What it takes with a context of `USEFUL_CONTEXT` tokens, or of all that it was made for."""
    fits: bool | None
    fits_disk: bool
    sentence: str
    projector: str | None = None
    """The GGUF file that gives it eyes, where the repository has one that is to be taken."""
    projector_bytes: int = 0
    blind_why: str = ""
    """Why it is to be taken without the projector that the repository has."""

    @property
    def backend(self) -> str:
        return BACKENDS[self.format]

    @property
    def device_bytes(self) -> int:
        """What lies on the GPUs when all of it does, with `least_bytes` of context and with its projector."""
        return self.least_bytes + self.projector_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine says of an architecture. `why_not` says why it cannot be asked, with the command that helps."""

    is_known: bool
    made_for: tuple[str, ...] | None = None
    engine: str = ""
    why_not: str | None = None
    device_bytes: int | None = None
    """What the GPUs that it lays models on have free; None where there is none, or it does not say."""


def candidates_of(record: Mapping[str, Any]) -> list[Candidate]:
    """The candidates in a record of fit-model that hold weights; the smallest first."""
    found = (_candidate(one, record.get("memory_free_bytes")) for one in record["candidates"])
    return [one for one in found if one is not None]


def without_eyes(one: Candidate, why: str) -> Candidate:
    """The candidate without its projector; its sentence says why."""
    return replace(one, projector=None, projector_bytes=0, blind_why=why, sentence=f"{one.sentence} {why}")


def _candidate(one: Mapping[str, Any], free_bytes: int | None) -> Candidate | None:
    files = tuple(str(file) for file in one["files"])
    weights = [file for file in files if file.lower().endswith(_WEIGHTS)]
    is_gguf = str(one["path"]).lower().endswith(".gguf")
    if not is_gguf and not weights:
        return None
    projector: Any = one["projector"] or {}
    found = Candidate(
        path=str(one["path"]) if is_gguf else weights[0],
        format="gguf" if is_gguf else "safetensors",
        files=files,
        quantization=one["quantization"],
        architecture=one["architecture"],
        size_bytes=int(one["size_bytes"]),
        missing_bytes=int(one["missing_bytes"]),
        memory_bytes=int(one["memory_bytes"]),
        least_bytes=_least_bytes(one),
        fits=one["fits"],
        fits_disk=bool(one["fits_disk"]),
        sentence=str(one["sentence"]),
        projector=projector.get("path") if is_gguf else None,
        projector_bytes=int(projector.get("size_bytes") or 0) if is_gguf else 0,
    )
    if found.projector is None or free_bytes is None or found.fits is False:
        return found
    if found.memory_bytes + found.projector_bytes > free_bytes:
        size = size_text(found.projector_bytes)
        return without_eyes(found, f"Its projector for images, {found.projector} ({size}), has no room beside it.")
    return found


def _least_bytes(one: Mapping[str, Any]) -> int:
    parts: Any = one.get("memory")
    context_size = int(one.get("context_size") or 0)
    if not parts or not context_size:
        return int(one["memory_bytes"])
    share = min(1.0, USEFUL_CONTEXT / context_size)
    fixed = parts["weights_bytes"] + parts["compute_bytes"] + parts.get("vocabulary_bytes", 0)
    return int(fixed + parts["cache_bytes"] * share)
