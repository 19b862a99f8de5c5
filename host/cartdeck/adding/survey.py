"""Owns the questions about a repository before anything large is fetched: what it holds, what fits, what can be run.

It does not know what is made of the answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cartdeck.adding.candidate import BACKENDS, Answer, Candidate, candidates_of, without_eyes
from cartdeck.adding.choice import Plan, choose
from cartdeck.adding.job import Job
from cartdeck.adding.repository import MAIN, Repository
from cartdeck.adding.step import Step
from cartdeck_protocol.errors import CartdeckError, Code, failure

FIT: Final = "cap:fit-model"
ARCHITECTURE: Final = "cap:architecture-info"
_GGUF: Final = ["*.gguf", "*.GGUF"]
_NOT_THERE: Final = (
    Code.FILE_NOT_FOUND, Code.UNSAFE_WEIGHTS, Code.BAD_ARGUMENT, Code.MISSING_SHARD,
)  # fmt: skip
_NOT_HERE: Final = (Code.CARTRIDGE_UNAVAILABLE, Code.NO_SUCH_CAP)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a repository holds at a commit."""

    commit: str
    candidates: tuple[Candidate, ...]
    advised: str | None


def blind(found: Survey) -> Survey:
    """The same without projectors: nobody wants them."""
    why = "Its projector for images is not asked for."
    candidates = tuple(one if one.projector is None else without_eyes(one, why) for one in found.candidates)
    return replace(found, candidates=candidates)


async def survey(job: Job, repository: Repository, *, projector: str | None = None) -> Survey:
    """The step `registry`: the commit, the files, and their headers where the registry gives ranges of files.

    The file `projector`, where the commit has it, is taken in place of the preferred one. Raises what fit-model raises;
    UNSUPPORTED where the repository is no model, or none is asked about.
    """
    async with job.step(Step.REGISTRY):
        asked = {"model": Repository(repository.name, file=repository.file).spec}
        revision = repository.revision or MAIN
        record = (await job.ask(FIT, {**asked, "revision": revision}, part=(0.0, 0.7))).json()
        commit = record["revision"]
        if record["source"] != "hub" or not commit:
            message = f"{repository.name} is not asked of a hub: cartdeck is set to be offline"
            raise failure(Code.OFFLINE_NOT_CACHED, message)
        if projector is not None:
            await _take_projector(job, repository, record, projector)
        candidates = candidates_of(record)
        if repository.file is None and any(one.format == "gguf" for one in candidates):
            candidates += await _beside_gguf(job, repository, commit)
        if not candidates:
            message = f"{repository.file or repository.name} holds no weights in GGUF or safetensors files"
            raise failure(Code.UNSUPPORTED, message, argument="file")
        count = f"{len(candidates)} candidate" + ("" if len(candidates) == 1 else "s")
        job.say(f"{repository.name} at {commit[:7]} ({revision}): {count}", commit=commit, revision=revision)
    return Survey(commit, tuple(candidates), record["advised"])


async def _take_projector(job: Job, repository: Repository, record: dict[str, Any], projector: str) -> None:
    """Puts that file into the record, in place of each other projector; the record stays where the file is gone."""
    others = [one for one in record["candidates"] if one["projector"] and one["projector"]["path"] != projector]
    if not others:
        return
    asked = {"model": Repository(repository.name, file=projector).spec, "revision": record["revision"]}
    try:
        found = (await job.ask(FIT, asked, part=(0.7, 0.7))).json()["candidates"]
    except CartdeckError as error:
        if error.code in _NOT_THERE:
            return
        raise
    for one in others:
        one["projector"] = {"path": projector, "size_bytes": sum(file["size_bytes"] for file in found)}


async def _beside_gguf(job: Job, repository: Repository, commit: str) -> list[Candidate]:
    """The weights in safetensors files that lie beside GGUF files; none where there are none that may be taken."""
    asked = {"model": Repository(repository.name).spec, "revision": commit, "exclude": _GGUF}
    try:
        record = (await job.ask(FIT, asked, part=(0.7, 1.0))).json()
    except CartdeckError as error:
        if error.code in _NOT_THERE:
            return []
        raise
    return [one for one in candidates_of(record) if one.format != "gguf"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan, and what its engine says of the architecture; None where that is not known yet."""

    plan: Plan
    answer: Answer | None


async def plan(job: Job, found: Survey, *, backend: str | None = None, is_named: bool = False) -> Chosen:
    """The step `plan`: the engines are asked about the architectures, and one candidate is taken. Raises `choose`'s."""
    async with job.step(Step.PLAN):
        if backend is not None and backend not in BACKENDS.values():
            known = ", ".join(BACKENDS.values())
            raise failure(Code.BAD_ARGUMENT, f"backend is {backend!r:.40}; expected one of {known}", argument="backend")
        answers = await _answers(job, found.candidates)
        chosen = choose(found.candidates, answers, advised=found.advised, backend=backend, is_named=is_named)
        taken = chosen.taken
        verdicts = [one.to_plain() for one in chosen.verdicts]
        job.say(f"{taken.path}: {chosen.why}", taken=taken.path, candidates=verdicts)
    return Chosen(chosen, answers.get((taken.backend, taken.architecture or "")))


async def _answers(job: Job, candidates: Sequence[Candidate]) -> dict[tuple[str, str], Answer]:
    pairs = list(dict.fromkeys((one.backend, one.architecture or "") for one in candidates))
    answers: dict[tuple[str, str], Answer] = {}
    for place, (backend, architecture) in enumerate(pairs):
        part = place / len(pairs), (place + 1) / len(pairs)
        answers[backend, architecture] = await ask_engine(job, backend, architecture, part=part)
    return answers


async def ask_engine(job: Job, backend: str, architecture: str, *, part: tuple[float, float] = (0.0, 1.0)) -> Answer:
    """What the engine of a backend says. An architecture that is not known yet is asked about as whether the engine is
    here at all."""
    cap = f"{ARCHITECTURE};{backend}"
    try:
        if not architecture:
            job.engine.router.route_text(cap, {})
            return Answer(is_known=False)
        record: Any = (await job.ask(cap, {"architecture": architecture}, part=part)).json()
    except CartdeckError as error:
        if error.code not in _NOT_HERE:
            raise
        commands: Any = error.details.get("install") or []
        helps = f" ({'; '.join(map(str, commands))})" if commands else ""
        return Answer(is_known=False, why_not=f"{error.message.rstrip('.')}{helps}")
    made_for: Any = record["made_for"]
    told: Any = record["engine"]
    engine = " ".join(str(told[part]) for part in ("library", "version") if told.get(part))
    device_bytes = told.get("device_memory_bytes")
    return Answer(
        bool(record["is_known"]), None if made_for is None else tuple(made_for), engine, device_bytes=device_bytes
    )
