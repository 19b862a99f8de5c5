"""Owns the choice among a repository's candidates, with the reason for each: which fits, which format, which engine.

It is pure: what the machine has and what the engines know is handed in.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.adding.candidate import Answer, Candidate, without_eyes
from cartdeck.size import size_text
from cartdeck_protocol.errors import CartdeckError, Code, failure

SERVED: Final = frozenset({"chat", "generate-text", "embed-text", "transcribe-speech"})
"""The caps that a catalog's model is asked for."""
_MOST_SHOWN: Final = 8
USED_SHARE: Final = 0.9
"""Of what a GPU has free: the driver's own buffers and scraps between others take the rest."""
Answers = Mapping[tuple[str, str], Answer]
"""By backend and architecture."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A candidate, whether it is taken, and why or why not. `code` is what refuses one that cannot be."""

    candidate: Candidate
    is_taken: bool
    why: str
    code: Code | None = None

    def to_plain(self) -> dict[str, Any]:
        one = self.candidate
        return {
            "path": one.path,
            "format": one.format,
            "backend": one.backend,
            "quantization": one.quantization,
            "architecture": one.architecture,
            "size_bytes": one.size_bytes,
            "memory_bytes": one.memory_bytes,
            "fits": one.fits,
            "projector": one.projector,
            "is_taken": self.is_taken,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The candidate that is taken, and the verdict on each, that one first."""

    taken: Candidate
    verdicts: tuple[Verdict, ...]

    @property
    def why(self) -> str:
        return self.verdicts[0].why


def choose(
    candidates: Sequence[Candidate],
    answers: Answers,
    *,
    advised: str | None,
    backend: str | None = None,
    is_named: bool = False,
) -> Plan:
    """The plan. `advised` is the path that fit-model advises; `is_named` says that the user named a file.

    Of what can be run a GGUF file comes before safetensors: it needs less memory, and no GPU. Where the engine lays
    models on a GPU, one that lies there whole comes before one that does not, and need not fit in the memory beside it.
    Raises BAD_ARGUMENT for several models of which nothing decides, and the code of the gravest reason where no
    candidate can be run, with all `candidates` in the details.
    """
    candidates = [_with_room(one, answers) for one in candidates]
    refusals = {one.path: _refusal(one, answers, backend) for one in candidates}
    usable = [one for one in candidates if refusals[one.path] is None]
    if not usable:
        raise _none_usable(candidates, refusals)
    whole = [one.path for one in usable if _is_whole(one, answers)]
    taken = _preferred(usable, advised, whole)
    if not is_named:
        _check_alone(taken, usable)
    verdicts = [Verdict(taken, True, _why_taken(taken, _device_bytes(taken, answers)))]
    for one in candidates:
        if one is not taken:
            refusal = refusals[one.path]
            why, code = refusal if refusal is not None else (_why_behind(one, taken, whole), None)
            verdicts.append(Verdict(one, False, why, code))
    return Plan(taken, tuple(verdicts))


def _refusal(one: Candidate, answers: Answers, backend: str | None) -> tuple[str, Code] | None:
    """Why a candidate cannot be run here at all."""
    if backend is not None and one.backend != backend:
        return f"it is for the backend {one.backend}, and {backend} was asked for", Code.UNSUPPORTED
    answer = answers.get((one.backend, one.architecture or ""))
    if answer is not None and answer.why_not is not None:
        return answer.why_not, Code.CARTRIDGE_UNAVAILABLE
    if answer is not None and one.architecture is not None and not answer.is_known:
        message = f"{answer.engine} does not know the architecture {one.architecture!r:.60}"
        return message, Code.UNSUPPORTED_ARCHITECTURE
    if answer is not None and answer.made_for is not None and answer.is_known and SERVED.isdisjoint(answer.made_for):
        message = f"models of the architecture {one.architecture} are for {', '.join(answer.made_for)}"
        return f"{message}, which a catalog's model is not asked for", Code.UNSUPPORTED
    if one.fits is False and not (one.fits_disk and _is_whole(one, answers)):
        return one.sentence, Code.INSUFFICIENT_MEMORY if one.fits_disk else Code.INSUFFICIENT_STORAGE
    return None


def _device_bytes(one: Candidate, answers: Answers) -> int:
    """What its engine may use of the GPUs; 0 without one."""
    answer = answers.get((one.backend, one.architecture or ""))
    return 0 if answer is None else int((answer.device_bytes or 0) * USED_SHARE)


def _is_whole(one: Candidate, answers: Answers) -> bool:
    """Whether all of it lies on the GPUs, its projector too, with a useful context."""
    return one.device_bytes <= _device_bytes(one, answers)


def _with_room(one: Candidate, answers: Answers) -> Candidate:
    """The candidate; without its projector where only that keeps what the memory does not take off the GPUs."""
    free_bytes = _device_bytes(one, answers)
    if one.fits is not False or not one.least_bytes <= free_bytes < one.device_bytes:
        return one
    size = size_text(one.projector_bytes)
    return without_eyes(one, f"Its projector for images, {one.projector} ({size}), has no room beside it on the GPU.")


def _preferred(usable: Sequence[Candidate], advised: str | None, whole: Collection[str]) -> Candidate:
    def place(one: Candidate) -> tuple[bool, bool, bool, int]:
        return one.format != "gguf", one.path not in whole, one.path != advised, -one.size_bytes

    return min(usable, key=place)


def _check_alone(taken: Candidate, usable: Sequence[Candidate]) -> None:
    """Raises BAD_ARGUMENT where other models are as good: only a person knows which is meant."""
    alike = [one for one in usable if one.format == taken.format and one.quantization == taken.quantization]
    if len(alike) > 1:
        paths = [one.path for one in alike]
        kind = f" of {taken.quantization}" if taken.quantization else ""
        message = f"It holds {len(alike)} models{kind}: {', '.join(paths[:_MOST_SHOWN])}. Name one as the file."
        raise failure(Code.BAD_ARGUMENT, message, argument="file", details={"candidates": paths[:200]})


def _none_usable(candidates: Sequence[Candidate], refusals: Mapping[str, tuple[str, Code] | None]) -> CartdeckError:
    found = [(one, refusal) for one in candidates if (refusal := refusals[one.path]) is not None]
    if not found:
        return failure(Code.FILE_NOT_FOUND, "It holds no weights in GGUF or safetensors files.", argument="file")
    # Memory may be freed and libraries installed: what can be mended is told before what cannot.
    codes = {refusal[1] for _, refusal in found}
    order = (
        Code.INSUFFICIENT_STORAGE, Code.INSUFFICIENT_MEMORY, Code.CARTRIDGE_UNAVAILABLE, Code.UNSUPPORTED_ARCHITECTURE,
    )  # fmt: skip
    code = next((one for one in order if one in codes), Code.UNSUPPORTED)
    shown = [f"{one.path}: {refusal[0]}" for one, refusal in found[:_MOST_SHOWN]]
    more = f" (and {len(found) - _MOST_SHOWN} more)" if len(found) > _MOST_SHOWN else ""
    message = f"None of the {len(found)} candidates can be run here. " if len(found) > 1 else ""
    details = {"candidates": [Verdict(one, False, *refusal).to_plain() for one, refusal in found]}
    return failure(code, f"{message}{'; '.join(shown)}{more}", argument="file", details=details)


def _why_taken(one: Candidate, device_bytes: int) -> str:
    kind = f"{one.quantization} " if one.quantization else ""
    size = size_text(one.projector_bytes)
    eyes = f" With its projector for images, {one.projector} ({size})." if one.projector is not None else ""
    place = ""
    if device_bytes:
        share = f"of {size_text(device_bytes)} it takes {size_text(one.device_bytes)}"
        is_whole = one.device_bytes <= device_bytes
        place = f" It lies on the GPU whole: {share}." if is_whole else f" Some layers stay beside the GPU: {share}."
    told = one.blind_why if one.fits is False else one.sentence
    sentence = f" {told}" if told else ""
    return f"{kind}in a {one.format} file for the backend {one.backend}.{place}{sentence}{eyes}"


def _why_behind(one: Candidate, taken: Candidate, whole: Collection[str]) -> str:
    if one.format != taken.format:
        need = f"{size_text(taken.memory_bytes)} of memory against {size_text(one.memory_bytes)}"
        return f"it can be run too; the GGUF file takes {need}. --backend {one.backend} takes it"
    kind = taken.quantization or taken.path
    if taken.path in whole and one.path not in whole:
        need = size_text(one.device_bytes)
        return f"it can be run too, with layers beside the GPU, as it takes {need}. --file {one.path} takes it"
    return f"it can be run too; {kind} comes before it in the order of preference. --file {one.path} takes it"
