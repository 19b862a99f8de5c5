"""An engine whose registry is a hub on loopback, and what its jobs tell."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cartdeck import Engine
from cartdeck.adding.job import Job
from cartdeck.settings import parse_settings
from cartdeck_protocol.errors import CartdeckError

LIMIT_S = 60.0


@dataclass
class Told:
    """What a job told: its events, and what it gave or the error it ended in."""

    events: list[Any]
    result: dict[str, Any] = field(default_factory=dict[str, Any])
    error: CartdeckError | None = None

    @property
    def steps(self) -> list[str]:
        return [event.step.label for event in self.events if type(event).__name__ == "StepEnded"]

    def detail(self, step: str) -> dict[str, Any]:
        ended = [event for event in self.events if type(event).__name__ == "StepEnded"]
        return next(event.detail for event in ended if event.step.label == step)

    @property
    def failed(self) -> tuple[str, Any]:
        """The code and the step of the error."""
        assert self.error is not None, self.result
        return self.error.code_name, self.error.details.get("step")


class Desk:
    """An engine on a loop of its own, and the ways to have jobs run there."""

    def __init__(self, engine: Engine, run: Callable[[Any], Any]) -> None:
        self.engine = engine
        self._run = run

    def run(self, make: Callable[[Engine], Job], watch: Callable[[Job, Any], None] | None = None) -> Told:
        """Run a job to its end; `watch(job, event)` sees each event."""
        return self._run(self._follow(make, watch))

    async def _follow(self, make: Callable[[Engine], Job], watch: Callable[[Job, Any], None] | None) -> Told:
        told = Told([])
        async with asyncio.timeout(LIMIT_S), make(self.engine) as job:
            try:
                async for event in job:
                    told.events.append(event)
                    if watch is not None:
                        watch(job, event)
                told.result = job.result
            except CartdeckError as error:
                told.error = error
        return told

    def call(self, use: Callable[[Engine], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(LIMIT_S):
                return await use(self.engine)

        return self._run(limited())


@pytest.fixture(scope="module")
def desk(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One for all tests of a file, whose models cartridge asks the hub on loopback. It is gone behind the file."""
    folder = tmp_path_factory.mktemp("models")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine-loop", daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(LIMIT_S + 10)

    table = {"models": {"endpoint": hub.url, "folder": str(folder)}, "call": {"tick_s": 0.1}}
    engine = Engine(parse_settings(table, origin="test"))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("HF_", "HUGGING", "CARTDECK_MODELS_")):
                patch.delenv(name)
        patch.setenv("HF_TOKEN_PATH", os.devnull)
        patch.setenv("NO_PROXY", "127.0.0.1")
        run(engine.__aenter__())
        yield Desk(engine, run)
        run(engine.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
