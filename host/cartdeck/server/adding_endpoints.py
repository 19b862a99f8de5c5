"""Owns `POST /models/add`, `/models/update` and `/models/rollback`: the catalog's models from a hub, as jobs.

It does not know the steps of a job. The model that answered stays in memory: the server's next request finds it there.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request

from cartdeck.adding.add import AddRequest, add_job
from cartdeck.adding.job import Job
from cartdeck.adding.step import JobEnded
from cartdeck.adding.telling import event_record
from cartdeck.adding.update import UpdateRequest, rollback_job, update_job
from cartdeck.plain import plain
from cartdeck.server.body import read_json
from cartdeck.server.event_stream import EventStream, event
from cartdeck.server.fields import Plain
from cartdeck.server.json_response import json_response
from cartdeck.server.models.catalog_directory import CatalogDirectory
from cartdeck.server.pace import Departure, paced
from cartdeck.server.service import Service
from cartdeck_protocol.errors import Code, failure

_IN_FORCE_S: Final = 5.0
"""How long a job waits at its end until the server has read the catalog anew."""
_LOOK_S: Final = 0.05


class AddModelRequest(Plain):
    repository: str
    name: str | None = None
    file: str | None = None
    revision: str | None = None
    backend: str | None = None
    projector: bool = True
    """With the projector that gives it eyes, where the repository has one."""
    dry_run: bool = False
    stream: bool = True
    """Events as they come, or one record at the end."""


class UpdateModelRequest(Plain):
    name: str = Field(min_length=1)
    revision: str | None = None
    dry_run: bool = False
    stream: bool = True


class RollbackModelRequest(Plain):
    name: str = Field(min_length=1)
    stream: bool = True


class AddingEndpoints:
    """The three, on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def add(self, request: Request) -> Any:
        """Raises Refused 403 beside guarded models, whose weights would get a name without guards."""
        self._service.check_unguarded("/models/add")
        asked = await read_json(request, AddModelRequest, self._service.options.limits)
        wanted = AddRequest(
            repository=asked.repository,
            name=asked.name,
            file=asked.file,
            revision=asked.revision,
            backend=asked.backend,
            takes_projector=asked.projector,
            is_dry=asked.dry_run,
        )
        engine, catalog = self._service.engine, self._catalog()
        return await self._run(request, lambda: add_job(engine, catalog, wanted), is_streamed=asked.stream)

    async def update(self, request: Request) -> Any:
        asked = await read_json(request, UpdateModelRequest, self._service.options.limits)
        wanted = UpdateRequest(name=asked.name, revision=asked.revision, is_dry=asked.dry_run)
        engine, catalog = self._service.engine, self._catalog()
        return await self._run(request, lambda: update_job(engine, catalog, wanted), is_streamed=asked.stream)

    async def rollback(self, request: Request) -> Any:
        asked = await read_json(request, RollbackModelRequest, self._service.options.limits)
        engine, catalog = self._service.engine, self._catalog()
        return await self._run(request, lambda: rollback_job(engine, catalog, asked.name), is_streamed=asked.stream)

    def _catalog(self) -> Path:
        """The file that this server reads. Raises UNSUPPORTED where there is none to write into."""
        directory = self._service.directory
        if not isinstance(directory, CatalogDirectory):
            message = "this server was started without a catalog; start it with `cartdeck serve --catalog FILE`"
            remedy = "FILE may be an empty one; `cartdeck catalog add --catalog FILE` begins one too."
            raise failure(Code.UNSUPPORTED, message, details={"remedy": remedy})
        return directory.path

    async def _run(self, request: Request, make: Callable[[], Job], *, is_streamed: bool) -> Any:
        job = await asyncio.to_thread(make)  # it reads the catalog's file
        comment_s = self._service.options.comment_s
        if is_streamed:
            return EventStream(self._pieces(job), cancel=job.cancel, comment_s=comment_s)
        async with job:
            with Departure(request.receive, job.cancel):
                result = await job.collect()
                await self._in_force(result)
            return json_response(plain(result))

    async def _pieces(self, job: Job) -> AsyncGenerator[bytes]:
        """`step`, `progress`, `step-end`, and at last `end` with what the job gave."""
        async with job, aclosing(paced(job, self._service.options.comment_s)) as batches:
            async for events in batches:
                told = [event_record(one) for one in events if not isinstance(one, JobEnded)]
                yield b"".join(event(record, name) for name, record in told)
            await self._in_force(job.result)
            yield event(plain(job.result), "end")

    async def _in_force(self, result: dict[str, Any]) -> None:
        """Wait until this server answers by the catalog that was just written: whoever asks next finds the model."""
        directory = self._service.directory
        assert isinstance(directory, CatalogDirectory)
        if "source" not in result or result.get("is_dry"):
            return
        try:
            async with asyncio.timeout(_IN_FORCE_S):
                while not any(  # noqa: ASYNC110 - the look at the file is by time, and nobody is told of it
                    one.name == result["name"] and one.spec == result["source"] for one in directory.models()
                ):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:  # somebody broke the catalog meanwhile: the log says so
            return
