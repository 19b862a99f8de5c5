"""Owns the three phases of a model call and where each lies in its progress: obtaining, loading, inference.

It does not know how a model is loaded, nor what inference makes. A phase that is skipped is not reported: the call's
progress jumps to the next one's beginning.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.progress import INFERENCE, LOADING, OBTAINING, steps_of
from cartdeck_sdk import Output, Report, Request
from cartdeck_sdk.service import seconds

T = TypeVar("T")

LoadReport = Callable[[float], None]
"""Called with the loader's own progress, 0 to 1, from any thread."""


class ProgressReport(Protocol):
    """What `Output.progress` is."""

    def __call__(
        self,
        fraction: float,
        message: str = "",
        *,
        phase: str | None = None,
        work: float | None = None,
        total: float | None = None,
    ) -> None: ...


STEP: Final = 0.05
SHORTEST_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ObtainedModel:
    """Where a model lies on this machine, and what the models cartridge recorded of it.

    `files` is the list of {path, size_bytes, sha256}; `obtain_s` is how long this call waited for it.
    """

    path: Path
    files: tuple[dict[str, Any], ...] = ()
    revision: str | None = None
    obtain_s: float = 0.0

    @property
    def sha256(self) -> str | None:
        """The hash of the file at `path`; None for a folder, and for a file that was never hashed."""
        for file in self.files:
            if file.get("path") == str(self.path):
                return cast("str | None", file.get("sha256"))
        return cast("str | None", self.files[0].get("sha256")) if len(self.files) == 1 else None


async def obtain_model(request: Request, spec: str, *, with_projector: bool = False) -> ObtainedModel:
    """The files of the model that `spec` names, through a peer call to `download-model`: progress 0 to 0.25.

    `with_projector`: a GGUF model of a hub comes with the vision projector that lies beside it there. Raises the peer's
    error.
    """
    started = time.monotonic()
    span = (OBTAINING.base, OBTAINING.end)
    arguments = {"model": spec, "with-projector": True} if with_projector else {"model": spec}
    result = await request.peer.call("cap:download-model", arguments).collect(forward_progress=span)
    details = _read_details(result.output("details"))
    return ObtainedModel(
        path=Path(result.text),
        files=tuple(details.get("files") or ()),
        revision=details.get("revision"),
        obtain_s=time.monotonic() - started,
    )


def _read_details(data: bytes) -> dict[str, Any]:
    try:
        details = json.loads(data or b"{}")
    except ValueError as error:
        raise failure(
            Code.HANDLER_FAILED, f"the models cartridge answered with details that are no JSON: {error}", phase="obtain"
        ) from None
    return cast("dict[str, Any]", details) if isinstance(details, dict) else {}


async def run_load(output: Output, name: str, size_bytes: int, load: Callable[[LoadReport], T]) -> T:
    """The result of `load(report)`, run in a worker thread, kept alive: progress 0.25 to 0.35.

    `report(fraction)` passes on the loader's own progress, at most 20 times a second; the work counted is that part of
    `size_bytes`. Raises what `load` raises, a MemoryError as `OUT_OF_MEMORY`: a host then makes room and tries the call
    once more.
    """

    def run(send: Report) -> T:
        last_s = float("-inf")

        def report(fraction: float) -> None:
            nonlocal last_s
            now = time.monotonic()
            if now - last_s >= SHORTEST_INTERVAL_S or fraction >= 1:
                last_s = now
                send(LOADING.at(fraction), None, int(size_bytes * min(max(fraction, 0.0), 1.0)), size_bytes)

        report(0.0)
        try:
            return load(report)
        except MemoryError as error:
            reason = f": {error}" if str(error) else ""
            raise failure(Code.OUT_OF_MEMORY, f"There is not enough memory for {name}{reason}", phase="load") from error

    return await output.run_with_keepalive(LOADING.base, f"Loading {name}", run, phase="load")


@asynccontextmanager
async def keeping_alive(repeat: Callable[[], None]) -> AsyncGenerator[None]:
    """While the block waits, `repeat()` is called every keepalive interval, to say again where the call stands."""
    interval_s = seconds(os.environ, "CARTDECK_KEEPALIVE_S", 5.0)

    async def run() -> None:
        while True:
            await asyncio.sleep(interval_s)
            repeat()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()


class InferenceReporter:
    """Reports counted work, tokens or steps, in the last phase: at 5 % steps, at most 20 a second, 0.35 to 0.95."""

    def __init__(self, report: ProgressReport, message: str, *, total: int, unit: str = "tokens") -> None:
        """`report` is the call's `output.progress`; `total` is how much work there is at most."""
        self._report = report
        self._message = message
        self._total = max(1, total)
        self._unit = unit
        self._work = 0
        self._steps = steps_of(STEP)
        self._last_s = float("-inf")

    def start(self) -> None:
        """Reports the phase's beginning."""
        self.advance(0)

    def advance(self, work: int) -> None:
        """Takes in how much is done; reports it when a step is full and the last report is not too fresh."""
        self._work = max(self._work, work)
        now, fraction = time.monotonic(), self._work / self._total
        if (now - self._last_s >= SHORTEST_INTERVAL_S or fraction >= 1) and self._steps.is_due(fraction):
            self._last_s = now
            self.repeat()

    def repeat(self) -> None:
        """Reports where the work stands, whether or not it went on: that the call is alive."""
        done = min(self._work, self._total)
        message = f"{self._message}: {done} of {self._total} {self._unit}"
        self._report(INFERENCE.at(done / self._total), message, phase="inference", work=done, total=self._total)
