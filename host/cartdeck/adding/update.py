"""Owns `update` and `rollback`: a model of the catalog moves to newer weights of its repository, and back.

It does not know who asked for it, nor how it is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from cartdeck.adding.add import try_out
from cartdeck.adding.draft import Fetched, pinned, weights_table
from cartdeck.adding.history import History
from cartdeck.adding.job import Job
from cartdeck.adding.obtaining import DOWNLOAD, download, read_header
from cartdeck.adding.placing import earlier_of, model_of, move, move_back
from cartdeck.adding.repository import MAIN, Repository, repository_of
from cartdeck.adding.step import Step
from cartdeck.adding.survey import Survey, blind, plan, survey
from cartdeck.adding.trial import Trial, trial_of
from cartdeck.catalog.catalog import Named
from cartdeck.catalog.entry import Origin
from cartdeck.catalog.origin import Found
from cartdeck.engine import Engine
from cartdeck_protocol.errors import Code, failure

_SHOWN: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """Which model, and where to look; without a `revision` it is the branch that the model came from."""

    name: str
    revision: str | None = None
    is_dry: bool = False


def update_job(engine: Engine, catalog: Path, request: UpdateRequest) -> Job:
    """The job, not yet begun. Raises MODEL_NOT_FOUND, and BAD_ARGUMENT for a model that came from no hub.

    The newer weights are fetched beside the old ones and have to answer; only then the entry moves. Its other keys stay
    as they are, and what it had is kept for `rollback_job`.
    """
    named = model_of(catalog, request.name)
    here = repository_of(named.entry.source)
    if here is None:
        message = (
            f"{named.name} is of {named.entry.source or 'another server'}, where no newer weights can be looked for"
        )
        raise failure(Code.BAD_ARGUMENT, f"{message}; expected a source hf:owner/name", argument="name")
    branch = None if here.is_pinned else here.revision
    follows = request.revision or History(catalog).of(named.name).follows or branch or MAIN

    async def work(job: Job) -> dict[str, Any]:
        repository = Repository(here.name, follows, here.file)
        eyes = _eyes_beside(named, here)
        found = await survey(job, repository, projector=None if eyes is None else eyes.file)
        result = {"name": named.name, "from": named.entry.source, "follows": follows, "steps": job.steps}
        if found.commit == _commit_of(named, here):
            return {**result, "is_newer": False, "text": _same(named, follows, found)}
        if eyes is None:
            found = blind(found)
        chosen = await plan(job, found, backend=named.entry.backend, is_named=here.file is not None)
        taken = chosen.plan.taken
        source = pinned(repository, taken, found.commit).spec
        if request.is_dry:
            return {**result, "is_newer": True, "source": source, "is_dry": True}
        fetched = await download(job, repository, taken, commit=found.commit)
        if _are_same(named, fetched):
            text = f"{follows} is at {found.commit[:_SHOWN]} by now, with the same weights"
            return {**result, "is_newer": False, "text": f"{named.name} stays as it is: {text}"}
        await read_header(job, repository, chosen, commit=found.commit)
        values = _eyes(named) | weights_table(repository, taken, fetched, capabilities=named.entry.capabilities)
        kept = None if follows == MAIN else follows
        await try_out(job, await _draft(job, catalog, named, values))
        async with job.step(Step.CATALOG):
            job.finalize()
            await anyio.to_thread.run_sync(lambda: move(catalog, named, values, follows=kept))
            job.say(f"{named.name} is of {source} now; `cartdeck rollback {named.name}` goes back", name=named.name)
        return {**result, "is_newer": True, "source": source}

    return Job(engine, work, subject="name")


def rollback_job(engine: Engine, catalog: Path, name: str) -> Job:
    """The job, not yet begun: the weights that the model had before its last update, which are here unless somebody
    removed them. Raises MODEL_NOT_FOUND, and BAD_ARGUMENT for a model that was not updated."""
    named = model_of(catalog, name)
    earlier = earlier_of(catalog, named)

    async def work(job: Job) -> dict[str, Any]:
        async with job.step(Step.DOWNLOAD):
            result = await job.ask(DOWNLOAD, {"model": _pinned_source(earlier)})
            if repository_of(earlier.get("projector")) is not None:
                await job.ask(DOWNLOAD, {"model": earlier["projector"]}, part=(0.9, 1.0))
            job.say(f"{earlier['source']} is here", path=result.text)
        async with job.step(Step.CATALOG):
            job.finalize()
            await anyio.to_thread.run_sync(lambda: move_back(catalog, named, earlier))
            job.say(f"{named.name} is of {earlier['source']} again", name=named.name)
        record = {"name": named.name, "from": named.entry.source, "source": earlier["source"]}
        return {**record, "steps": job.steps}

    return Job(engine, work, subject="name")


async def _draft(job: Job, catalog: Path, named: Named, values: dict[str, Any]) -> Trial:
    """The step `entry`: the catalog would be sound with the newer weights. Nothing is written yet."""
    async with job.step(Step.ENTRY):
        drafted = await anyio.to_thread.run_sync(lambda: move(catalog, named, values, follows=None, is_dry=True))
        trial = trial_of(Named(named.name, drafted.entries[named.name]))
        job.say(f"{named.name}, from {values['source']}", name=named.name)
    return trial


def _pinned_source(weights: Mapping[str, Any]) -> str:
    """The source, at the commit that its origin says."""
    source, origin = str(weights["source"]), weights.get("origin")
    here = repository_of(source)
    if here is None or here.is_pinned or not origin:
        return source
    return Repository(here.name, str(origin["revision"]), here.file).spec


def _commit_of(named: Named, here: Repository) -> str | None:
    if here.is_pinned:
        return here.revision
    return None if named.entry.origin is None else named.entry.origin.revision


def _eyes_beside(named: Named, here: Repository) -> Repository | None:
    """Its projector, where that is of the same repository and so moves with its weights; the file stays of one name."""
    eyes = repository_of(named.entry.projector)
    return eyes if eyes is not None and eyes.name == here.name else None


def _eyes(named: Named) -> dict[str, Any]:
    """The keys of the projector that the entry has: they stay where there is no newer one."""
    origin = named.entry.projector_origin
    kept = {"projector": named.entry.projector, "projector_origin": None if origin is None else origin.model_dump()}
    return {key: value for key, value in kept.items() if value is not None}


def _are_same(named: Named, fetched: Fetched) -> bool:
    """Whether every file is the one that the entry pins."""
    entry = named.entry
    eyes = fetched.projector is None or _is_of(entry.projector_origin, fetched.projector)
    return eyes and _is_of(entry.origin, fetched.model)


def _is_of(origin: Origin | None, found: Found) -> bool:
    if origin is None or not origin.files:
        return False
    return {path: file.sha256 for path, file in origin.files.items()} == {
        path: sha256 for path, (_, sha256) in found.files.items()
    }


def _same(named: Named, follows: str, found: Survey) -> str:
    return f"{named.name} is of the newest weights there are: {follows} is at {found.commit[:_SHOWN]}"
