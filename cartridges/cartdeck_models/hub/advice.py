"""Owns how the candidates of a repository are judged: which headers are read, and which candidate is advised.

It does not know HTTP or disks: a listing, ranges of bytes and the room are handed in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from cartdeck_models.fit import Candidate, Room, Verdict, best, judge
from cartdeck_models.growth import Growth
from cartdeck_models.hub.gguf_name import F, WeightFiles, best_projector, is_model, last_part, preference, stem_of
from cartdeck_models.hub.remote_header import remote_config_growth, remote_gguf_growth
from cartdeck_models.hub.safetensors_choice import is_weights
from cartdeck_models.hub.selection import Choice, choose_files, gguf_candidates
from cartdeck_models.spec import HubSpec
from cartdeck_protocol.errors import CartdeckError, Code

MOST_HEADERS: Final = 8
"""So many headers are read for one answer. The quantizations of one model share theirs but for the tensors' types."""

_UNREADABLE: Final = (Code.BAD_MODEL_FILE, Code.MODEL_TRUNCATED, Code.UNSUPPORTED_ARCHITECTURE, Code.UNSUPPORTED)


@dataclass(frozen=True)  # without slots: Python 3.11 cannot make a frozen generic that has them as Listing[X](…)
class Listing(Generic[F]):
    """What is shown of a repository: its files, a range [first, end) of one of them, and which are here already."""

    files: Sequence[F]
    fetch: Callable[[F, int, int], bytes]
    is_present: Callable[[F], bool]


@dataclass(frozen=True, slots=True)
class Advice:
    """The verdicts, the smallest model first, and which of them is advised; None where none fits."""

    verdicts: tuple[Verdict, ...]
    advised: Verdict | None

    def to_plain(self) -> dict[str, Any]:
        return {
            "candidates": [verdict.to_plain() for verdict in self.verdicts],
            "advised": None if self.advised is None else self.advised.candidate.path,
        }


def advise(listing: Listing[F], spec: HubSpec, room: Room, *, context_size: int = 0) -> Advice:
    """Judge every candidate that `spec` may mean. Raises what `choose_files` raises where it means none."""
    groups = [group for group in gguf_candidates(listing.files, spec) if not group.missing]
    if not groups:
        choice = choose_files(listing.files, spec)
        verdict = judge_choice(listing, choice, room, context_size=context_size)
        return Advice((verdict,), best([verdict]))
    growths = _growths(listing, groups)
    judged = {
        group.path: judge(
            _gguf_candidate(listing, group), growths.get(stem_of(group.path)), room, context_size=context_size
        )
        for group in groups
    }
    preferred = sorted(groups, key=lambda group: preference(group.quantization))
    verdicts = sorted(judged.values(), key=lambda verdict: (verdict.candidate.size_bytes, verdict.candidate.path))
    return Advice(tuple(verdicts), best([judged[group.path] for group in preferred]))


def judge_choice(listing: Listing[F], choice: Choice[F], room: Room, *, context_size: int = 0) -> Verdict:
    """The verdict on files that are chosen already."""
    weights = [file for file in choice.files if is_model(file.path) or is_weights(file.path)]
    growth: Growth | None = None
    if choice.main is None:
        growth = _config_growth(listing, choice)
    elif is_model(choice.main.path):
        growth = _tolerant(_reading(listing, choice.main))
    candidate = Candidate(
        path=choice.main.path if choice.main is not None else choice.folder or ".",
        files=tuple(file.path for file in choice.files),
        size_bytes=choice.size_bytes,
        weights_bytes=sum(file.size_bytes for file in weights),
        missing_bytes=_missing_bytes(listing, choice.files),
        quantization=choice.quantization,
        projector=choice.projector.path if choice.projector else None,
        projector_bytes=choice.projector.size_bytes if choice.projector else 0,
    )
    return judge(candidate, growth, room, context_size=context_size)


def _growths(listing: Listing[F], groups: Sequence[WeightFiles[F]]) -> dict[str, Growth | None]:
    """The growth by stem, each from the header of one of its models."""
    growths: dict[str, Growth | None] = {}
    for group in groups:
        stem = stem_of(group.path)
        if growths.get(stem) is None and len(growths) < MOST_HEADERS:
            first = group.files[0]
            growths[stem] = _tolerant(_reading(listing, first))
    return growths


def _reading(listing: Listing[F], file: F) -> Callable[[], Growth]:
    return lambda: remote_gguf_growth(_of(listing, file), file.path, file.size_bytes)


def _gguf_candidate(listing: Listing[F], group: WeightFiles[F]) -> Candidate:
    folder = group.path.rpartition("/")[0]
    beside = [file for file in listing.files if file.path.rpartition("/")[0] == folder]
    projector = best_projector(beside) or best_projector(listing.files)
    return Candidate(
        path=group.path,
        files=tuple(file.path for file in group.files),
        size_bytes=group.size_bytes,
        weights_bytes=group.size_bytes,
        missing_bytes=_missing_bytes(listing, group.files),
        quantization=group.quantization,
        projector=None if projector is None else projector.path,
        projector_bytes=0 if projector is None else projector.size_bytes,
    )


def _config_growth(listing: Listing[F], choice: Choice[F]) -> Growth | None:
    configs = sorted(
        (file for file in choice.files if last_part(file.path) == "config.json"), key=lambda f: len(f.path)
    )
    if not configs:
        return None
    config = configs[0]
    return _tolerant(lambda: remote_config_growth(_of(listing, config), config.size_bytes))


def _of(listing: Listing[F], file: F) -> Callable[[int, int], bytes]:
    return lambda first, end: listing.fetch(file, first, end)


def _missing_bytes(listing: Listing[F], files: Iterable[F]) -> int:
    return sum(file.size_bytes for file in files if not listing.is_present(file))


def _tolerant(read: Callable[[], Growth | None]) -> Growth | None:
    """What `read` gives; None for a file that is no model, so that one bad file does not hide the others, and for a hub
    that gives no parts of a file."""
    try:
        return read()
    except CartdeckError as error:
        if error.code in _UNREADABLE:
            return None
        raise
