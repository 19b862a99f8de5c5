"""Owns what calls and peer calls need of the engine, as an interface.

It does not know the engine, which knows calls and must not be known by them.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from cartdeck.calls.arguments import Prepared
from cartdeck.calls.backlog import Backlog
from cartdeck.calls.window import Reserve
from cartdeck.request import Request
from cartdeck.router import Route, Router
from cartdeck.sessions.clock import Clock
from cartdeck.settings import Settings


class Switch(Protocol):
    """The engine, as calls and peer calls see it."""

    settings: Settings
    clock: Clock
    loop: asyncio.AbstractEventLoop
    router: Router
    reserve: Reserve
    backlog: Backlog

    def check_open(self) -> None:
        """Raises ABORTED outside of the engine's context."""
        ...

    def submit(self, request: Request, route: Route, prepared: Prepared) -> None:
        """Send a request on its way. Raises what refuses it at the door."""
        ...

    def leave(self, request: Request) -> None:
        """Take a waiting request out of its queue."""
        ...

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work` in a task of the engine's."""
        ...
