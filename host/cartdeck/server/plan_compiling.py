"""Owns the way of a plan's text to a plan that can run: a large one is worked on in a thread of its own, so that other
requests need not wait for it.

It does not know HTTP, nor how plans are compiled.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import anyio.to_thread

from cartdeck.engine import Engine
from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.inputs import compiled_for
from cartdeck.plans.plan import Plan
from cartdeck_protocol.errors import CartdeckError, ErrorClass

LARGE_CHARACTERS: Final = 2048
"""Some 50 steps, which take 7 ms; a hop to a thread and back takes 0.2."""
_AT_ONCE: Final = 2
"""Each more would take turns of the interpreter's lock from the loop."""

Made = TypeVar("Made")


class PlanCompiler:
    """Compiles plans for one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def compiled(self, text: str, inputs: Mapping[str, Any]) -> CompiledPlan:
        """The plan for these inputs. Raises what `Plan.parse` and `compiled_for` raise."""
        return await self.made(text, partial(_compiled, text, self._engine, inputs))

    async def made(self, text: str, make: Callable[[], Made]) -> Made:
        """What `make` makes of a plan's text, in a thread where that is long. Raises what it raises; a fault that names
        no argument is one of the field `plan`."""
        try:
            if len(text) < LARGE_CHARACTERS:
                return make()
            async with self._places:
                return await anyio.to_thread.run_sync(make)
        except CartdeckError as error:
            if error.argument is None and error.error_class is ErrorClass.INPUT:
                error.argument = "plan"
            raise


def _compiled(text: str, engine: Engine, inputs: Mapping[str, Any]) -> CompiledPlan:
    return compiled_for(Plan.parse(text), engine.router, inputs)
