"""Owns `add`: from a repository to a model of the catalog that has answered.

It does not know who asked for it, nor how it is shown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from cartdeck.adding.draft import blind_table, entry_table, pinned
from cartdeck.adding.job import Job
from cartdeck.adding.obtaining import download, read_header
from cartdeck.adding.placing import check_name, place
from cartdeck.adding.repository import MAIN, Repository, parse_repository
from cartdeck.adding.step import Step
from cartdeck.adding.survey import blind, plan, survey
from cartdeck.adding.trial import Trial, trial_of
from cartdeck.catalog.catalog import Named
from cartdeck.catalog.entry import NAME
from cartdeck.engine import Engine
from cartdeck_protocol.errors import CartdeckError, Code, failure


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """What is to be added. Without a `name` it gets the repository's; without a `file` the one that fits is chosen."""

    repository: str
    name: str | None = None
    file: str | None = None
    revision: str | None = None
    backend: str | None = None
    takes_projector: bool = True
    """Whether a projector for images that lies in the repository is taken with a model in a GGUF file."""
    is_dry: bool = False


def add_job(engine: Engine, catalog: Path, request: AddRequest) -> Job:
    """The job, not yet begun. Raises BAD_ARGUMENT for a request that can be seen to fail: the form of the repository,
    a name that is no name or is taken.

    The entry is written last, when the model has answered: a job that ends before leaves the catalog as it was. What
    was fetched stays, so that the same again goes on there.
    """
    given = parse_repository(request.repository)
    repository = Repository(given.name, request.revision or given.revision, request.file or given.file)
    name = request.name or repository.short_name
    if not NAME.fullmatch(name):
        message = (
            f"{name[:80]!r} is no name of a model; expected letters, digits and . _ + -, as in small or owner/small"
        )
        raise failure(Code.BAD_ARGUMENT, message, argument="name")
    check_name(catalog, name)

    async def work(job: Job) -> dict[str, Any]:
        found = await survey(job, repository)
        if not request.takes_projector:
            found = blind(found)
        chosen = await plan(job, found, backend=request.backend, is_named=repository.file is not None)
        taken = chosen.plan.taken
        source = pinned(repository, taken, found.commit).spec
        if request.is_dry:
            return {"name": name, "source": source, "is_dry": True, "steps": job.steps}
        fetched = await download(job, repository, taken, commit=found.commit)
        read = await read_header(job, repository, chosen, commit=found.commit)
        table = entry_table(repository, taken, fetched, info=read.info, capabilities=read.capabilities)
        table = await _tried(job, catalog, name, table)
        revision = repository.revision or MAIN
        follows = None if revision == MAIN or repository.is_pinned else revision
        async with job.step(Step.CATALOG):
            job.finalize()
            await anyio.to_thread.run_sync(lambda: place(catalog, name, table, follows=follows))
            job.say(f"{name} is in {catalog}", name=name, path=str(catalog))
        return {"name": name, "source": source, "entry": table, "catalog": str(catalog), "steps": job.steps}

    return Job(engine, work, subject="repository")


async def _tried(job: Job, catalog: Path, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The steps `entry`, `start` and `smoke-test`; the table of what answered. A projector that the engine finds not
    to belong to the model is left out, and told. Raises the calls' errors."""
    try:
        await try_out(job, await _draft(job, catalog, name, table))
    except CartdeckError as error:
        if "projector" not in table or not is_about_eyes(error):
            raise
        table = blind_table(table)
        await try_out(job, await _draft(job, catalog, name, table, more=f"; without eyes: {error.message}"))
    return table


async def _draft(job: Job, catalog: Path, name: str, table: dict[str, Any], *, more: str = "") -> Trial:
    """The step `entry`: the catalog would be sound with it. Nothing is written yet."""
    async with job.step(Step.ENTRY):
        drafted = await anyio.to_thread.run_sync(lambda: place(catalog, name, table, is_dry=True))
        trial = trial_of(Named(name, drafted.entries[name]))
        eyes = f" with {table['projector']}" if "projector" in table else ""
        job.say(f"{name}, from {table['source']}{eyes}{more}", name=name, entry=table)
    return trial


def is_about_eyes(error: CartdeckError) -> bool:
    """Whether it is a model's projector that its engine refuses."""
    return error.code is Code.PROJECTOR_MISMATCH or error.argument == "projector"


async def try_out(job: Job, trial: Trial) -> None:
    """The steps `start` and `smoke-test`. A model that fails there is not left in memory. Raises the calls' errors."""
    try:
        async with job.step(Step.START):
            await trial.start(job)
        async with job.step(Step.SMOKE_TEST):
            await trial.smoke_test(job)
    except BaseException:
        job.engine.start_task(trial.unload(job.engine))  # not waited for: others may use the same process by now
        raise
