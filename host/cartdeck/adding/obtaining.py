"""Owns the steps from a plan to a model that is known to be whole: fetched, verified, and read as its engine reads it.

It does not know the catalog.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import anyio.to_thread

from cartdeck.adding.candidate import Answer, Candidate
from cartdeck.adding.draft import Fetched, capabilities_of, eyes_of, pinned
from cartdeck.adding.job import Job
from cartdeck.adding.repository import Repository
from cartdeck.adding.step import Step
from cartdeck.adding.survey import Chosen, ask_engine
from cartdeck.catalog.file_mark import FileMarks
from cartdeck.catalog.origin import Found, found_of
from cartdeck.size import size_text
from cartdeck_protocol.errors import Code, failure

DOWNLOAD: Final = "cap:download-model"
INFO: Final = "cap:model-info"


@dataclass(frozen=True, slots=True)
class Read:
    """What a model's files say of it, and what it is for by that."""

    info: dict[str, Any]
    capabilities: list[str]


async def download(job: Job, repository: Repository, candidate: Candidate, *, commit: str) -> Fetched:
    """The step `download`: the candidate at that commit with its projector, every file checked by its hash. Goes on
    where an earlier transfer broke off. Raises what download-model raises."""
    async with job.step(Step.DOWNLOAD):
        whole = candidate.size_bytes + candidate.projector_bytes
        share = candidate.size_bytes / whole if whole else 1.0
        found, details = await _fetch(job, pinned(repository, candidate, commit), part=(0.0, share))
        eyes: Found | None = None
        resumed_bytes = int(details.get("resumed_bytes") or 0)
        if candidate.projector is not None:
            eyes, more = await _fetch(job, eyes_of(repository, candidate.projector, commit), part=(share, 1.0))
            resumed_bytes += int(more.get("resumed_bytes") or 0)
        fetched = Fetched(found, eyes)
        number = len(found.files) + (0 if eyes is None else len(eyes.files))
        count = f"{number} file" + ("" if number == 1 else "s")
        resumed = f", {size_text(resumed_bytes)} of it from before" if resumed_bytes else ""
        job.say(
            f"{count}, {size_text(fetched.size_bytes)}{resumed}, hashes right",
            path=details["path"],
            size_bytes=fetched.size_bytes,
            resumed_bytes=resumed_bytes,
            origin=found.table(),
            projector_origin=None if eyes is None else eyes.table(),
        )
    return fetched


async def _fetch(job: Job, source: Repository, *, part: tuple[float, float]) -> tuple[Found, dict[str, Any]]:
    """The files of a source, hashed, and what download-model says of them."""
    result = await job.ask(DOWNLOAD, {"model": source.spec}, part=part)
    details: Any = json.loads(result.output("details"))
    found = await anyio.to_thread.run_sync(lambda: found_of(details, FileMarks()))
    if found is None:
        raise failure(Code.UNSUPPORTED, f"{source.name} came from {details['source']}, and not from a hub")
    return found, details


async def read_header(job: Job, repository: Repository, chosen: Chosen, *, commit: str) -> Read:
    """The step `header`: what the whole files say, and whether the engine takes that. Raises what model-info raises;
    UNSUPPORTED_ARCHITECTURE, UNSUPPORTED."""
    candidate = chosen.plan.taken
    async with job.step(Step.HEADER):
        spec = pinned(repository, candidate, commit).spec
        info = (await job.ask(f"{INFO};{candidate.backend}", {"model": spec}, part=(0.0, 0.8))).json()
        architecture = str(info.get("architecture") or "")
        answer = chosen.answer
        if architecture and architecture != candidate.architecture:  # it could not be read before, or was not the same
            answer = await ask_engine(job, candidate.backend, architecture, part=(0.8, 1.0))
            _check_known(answer, architecture)
        capabilities = capabilities_of(candidate, info, answer)
        context: Any = info.get("context_length")
        seen = f", {context:,} tokens of context" if isinstance(context, int) else ""
        job.say(
            f"{architecture}{seen}; for {', '.join(capabilities)}",
            architecture=architecture,
            context_length=context,
            parameters=info.get("parameters"),
            capabilities=capabilities,
        )
    return Read(info, capabilities)


def _check_known(answer: Answer, architecture: str) -> None:
    if answer.why_not is not None:
        raise failure(Code.CARTRIDGE_UNAVAILABLE, answer.why_not)
    if not answer.is_known:
        message = f"{answer.engine} does not know the architecture {architecture!r:.60}"
        raise failure(Code.UNSUPPORTED_ARCHITECTURE, message, details={"architecture": architecture})
