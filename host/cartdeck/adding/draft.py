"""Owns what a catalog's entry says of a model that was just fetched: what it is for, where it came from, its hashes.

It is pure: what the model's files and its engine say is handed in. It does not know the catalog's file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.adding.candidate import Answer, Candidate
from cartdeck.adding.repository import Repository
from cartdeck.catalog.origin import Found
from cartdeck.size import size_text
from cartdeck_protocol.errors import Code, failure

_POOLED: Final = ("mean", "cls", "last")
_LONGEST_DESCRIPTION: Final = 300


def capabilities_of(candidate: Candidate, info: Mapping[str, Any], answer: Answer | None) -> list[str]:
    """What the model is for, by its own description and by its projector, which is of use in a dialogue alone. Raises
    UNSUPPORTED for what no catalog's model is asked for."""
    if (kind := info.get("kind") or "model") != "model":
        raise failure(Code.UNSUPPORTED, f"{candidate.path} is of the kind {kind!r:.40}, and no model by itself")
    made_for = None if answer is None else answer.made_for
    found = (
        _by_caps(made_for, info) if made_for is not None else _by_header(info, has_eyes=candidate.projector is not None)
    )
    if not found:
        reason = f"its pooling is {info.get('pooling')}" if made_for is None else f"it is for {', '.join(made_for)}"
        message = f"{candidate.path} makes neither texts nor vectors nor transcripts: {reason}"
        raise failure(Code.UNSUPPORTED, message)
    return found


def _by_caps(made_for: Sequence[str], info: Mapping[str, Any]) -> list[str]:
    if "transcribe-speech" in made_for:
        return ["speech"]
    if "embed-text" in made_for:
        return ["embeddings"]
    if "generate-text" not in made_for:
        return []
    return _of_texts(info, has_eyes="describe-image" in made_for)


def _by_header(info: Mapping[str, Any], *, has_eyes: bool) -> list[str]:
    pooling = info.get("pooling")
    if pooling in _POOLED or (pooling is None and info.get("is_causal") is False):
        return ["embeddings"]
    return [] if info.get("is_causal") is False else _of_texts(info, has_eyes=has_eyes)


def _of_texts(info: Mapping[str, Any], *, has_eyes: bool) -> list[str]:
    template: Any = info.get("template")
    if not isinstance(template, str) or not template.strip():
        return ["completion"]
    more = [*(["tools"] if "tools" in template else []), *(["vision"] if has_eyes else [])]
    return ["chat", "completion", *more]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The files of a candidate as they are here: of the model, and of its projector where it has one."""

    model: Found
    projector: Found | None = None

    @property
    def size_bytes(self) -> int:
        """What they take together."""
        parts = [self.model, *([] if self.projector is None else [self.projector])]
        return sum(size for found in parts for size, _ in found.files.values())


def entry_table(
    repository: Repository, candidate: Candidate, found: Fetched, *, info: Mapping[str, Any], capabilities: list[str]
) -> dict[str, Any]:
    """The table of the catalog's entry. Its sources name the commit, so that nothing changes by itself."""
    return {
        "description": _description(repository, candidate, found, info),
        "backend": candidate.backend,
        "capabilities": capabilities,
        **weights_table(repository, candidate, found, capabilities=capabilities),
    }


def weights_table(
    repository: Repository, candidate: Candidate, found: Fetched, *, capabilities: Sequence[str]
) -> dict[str, Any]:
    """The keys of an entry that say what is loaded."""
    commit = found.model.revision
    table: dict[str, Any] = {"source": pinned(repository, candidate, commit).spec, "origin": found.model.table()}
    if found.projector is not None and candidate.projector is not None and "vision" in capabilities:
        table["projector"] = eyes_of(repository, candidate.projector, commit).spec
        table["projector_origin"] = found.projector.table()
    return table


def blind_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of the same entry without its projector."""
    left = {key: value for key, value in table.items() if key not in ("projector", "projector_origin")}
    if "capabilities" in left:
        left["capabilities"] = [one for one in left["capabilities"] if one != "vision"]
    return left


def pinned(repository: Repository, candidate: Candidate, commit: str) -> Repository:
    """The candidate's files at that commit."""
    return Repository(repository.name, commit, candidate.path)


def eyes_of(repository: Repository, projector: str, commit: str) -> Repository:
    """The projector at that commit."""
    return Repository(repository.name, commit, projector)


def _description(repository: Repository, candidate: Candidate, found: Fetched, info: Mapping[str, Any]) -> str:
    name = info.get("name") if candidate.format == "gguf" else None
    words = [
        str(info.get("architecture") or ""),
        candidate.quantization or "",
        size_text(found.size_bytes),
        f"from {repository.name}",
    ]
    text = f"{name or repository.short_name}: {', '.join(word for word in words if word)}."
    return " ".join(text.split())[:_LONGEST_DESCRIPTION]
