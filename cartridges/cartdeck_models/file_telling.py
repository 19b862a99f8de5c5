"""Owns the output `files` of download-model: how far each file of a transfer is, for a caller that wants to know.

It does not know transfers: it looks at what a seat was told last.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

import anyio

from cartdeck_models.flight import Seat
from cartdeck_models.obtained import Obtained
from cartdeck_models.task import FileAdvance
from cartdeck_sdk import Output

TELL_EVERY_S: Final = 0.2


@asynccontextmanager
async def files_told(seat: Seat[Obtained], output: Output, *, is_wanted: bool) -> AsyncGenerator[None]:
    """While the block runs, send an item for each file that moved; at its end one for each that was not told yet.

    A reader that is behind is waited for only at the end. The block's error leaves bare, not in a group.
    """
    if not is_wanted:
        yield
        return
    told: dict[str, FileAdvance] = {}
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tell_on, seat, output, told)
        try:
            yield
        except BaseException as error:  # carried out bare: a task group would wrap it
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
    await _tell(seat, output, told)


async def _tell_on(seat: Seat[Obtained], output: Output, told: dict[str, FileAdvance]) -> None:
    while True:
        await anyio.sleep(TELL_EVERY_S)
        await _tell(seat, output, told)


async def _tell(seat: Seat[Obtained], output: Output, told: dict[str, FileAdvance]) -> None:
    look = seat.last.files
    files: Sequence[FileAdvance] = () if look is None else look()
    for file in files:
        if told.get(file.path) != file:
            told[file.path] = file
            await output.stream("files").item(asdict(file))
