"""Owns a cartridge's process while it serves: the loop, the workers, the way from events to calls, the way out.

It does not know what handlers do.
"""

import asyncio
import os
import sys
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Mapping
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from cartdeck_protocol.caps import CapUrn, UrnError
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import (
    Connection,
    ConnectionLogged,
    ConnectionRefused,
    HelloReceived,
    RequestReceived,
    Role,
    StrayReceived,
)
from cartdeck_sdk.cartridge import Cartridge, Registration
from cartdeck_sdk.guard import FramePipes
from cartdeck_sdk.pipes import HIGH_WATER_BYTES, PipeLink
from cartdeck_sdk.task import HandlerTask
from cartdeck_sdk.timer import HeartbeatTimer

T = TypeVar("T")

WORKERS: Final = 64
_STOP_GRACE_S: Final = 1.0
_FLUSH_GRACE_S: Final = 1.0


class Service:
    """Serves one cartridge on one pair of pipes until the host closes them."""

    def __init__(self, cartridge: Cartridge, pipes: FramePipes) -> None:
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        manifest = cartridge.manifest
        self.connection = Connection(
            Role.CARTRIDGE,
            manifest=cartridge.manifest_bytes,
            software=f"{manifest.name} {manifest.version}",
        )
        self.keepalive_s = seconds(os.environ, "CARTDECK_KEEPALIVE_S", 5.0)
        self._cartridge = cartridge
        self._by_urn: dict[str, Registration] = {
            str(entry.definition.urn): entry for entry in cartridge.registrations.values()
        }
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="cartdeck-worker")
        self._tasks: set[Task[None]] = set()
        self._over: Future[int] = self.loop.create_future()
        self._link = PipeLink(self.loop, self.connection, pipes, on_event=self._on_event, on_end=self._on_end)
        self.outbox = self._link.outbox
        self._timer = HeartbeatTimer(
            self.outbox,
            self._counts,
            heartbeat_s=seconds(os.environ, "CARTDECK_HEARTBEAT_S", 5.0),
        )
        # the link's own methods, so that a write costs one call less
        self.schedule_flush = self._link.schedule_flush
        self.flush = self._link.flush
        self.answered = self._link.answered

    async def run(self) -> int:
        """Serve; the exit code once the host has closed the pipes."""
        self.loop.set_exception_handler(_report)
        for hook in self._cartridge.start_hooks:
            await hook()
        self._link.start()
        code = await self._over
        await self._stop()
        return code

    def leave(self, exit_code: int) -> None:
        """End the process once what was said has left."""
        if not self._over.done():
            self._over.set_result(exit_code)

    @property
    def is_congested(self) -> bool:
        return self.outbox.waiting_bytes > HIGH_WATER_BYTES

    def submit(self, function: Callable[[], T]) -> "ThreadFuture[T]":
        """`function` in a worker thread, as soon as one is free."""
        return self._workers.submit(_run, function)

    def run_in_worker(self, function: Callable[[], T]) -> "Future[T]":
        return asyncio.wrap_future(self.submit(function), loop=self.loop)

    def own_task(self, task: "Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _counts(self) -> tuple[int, int, int]:
        connection = self.connection
        return len(connection.exchanges), connection.stragglers, connection.strays

    def _on_event(self, event: Any) -> None:
        if type(event) is RequestReceived:
            self._on_request(event)
        elif isinstance(event, HelloReceived):
            self.flush()  # our HELLO is the first frame: heartbeats start behind it
            self._timer.start()
        elif isinstance(event, ConnectionLogged | ConnectionRefused | StrayReceived):
            print(f"cartdeck_sdk: {event}", file=sys.stderr)
        else:
            owner = event.exchange.owner
            if owner is not None:
                owner.on_event(event)

    def _on_request(self, event: RequestReceived) -> None:
        entry = self._by_urn.get(event.cap) or self._find(event.cap)
        if isinstance(entry, CartdeckError):
            self.connection.fail(event.exchange, entry)
            return
        HandlerTask(self, event.exchange, entry).begin(event)

    def _find(self, cap: str) -> Registration | CartdeckError:
        """The handler for a URN that is not word for word one of ours."""
        try:
            request = CapUrn.parse(cap)
        except UrnError as error:
            return failure(Code.NO_SUCH_CAP, f"not a cap URN: {error}")
        for entry in self._by_urn.values():
            if entry.definition.urn.serves(request):
                return entry
        served = ", ".join(entry.definition.alias for entry in self._by_urn.values())
        return failure(Code.NO_SUCH_CAP, f"this cartridge does not serve {cap}; it serves: {served}")

    def _on_end(self, error: Exception | None) -> None:
        if error is not None:
            print(f"cartdeck_sdk: the connection to the host is over: {error}", file=sys.stderr)
        self.leave(0 if error is None else 1)

    async def _stop(self) -> None:
        """Cancel what runs, give hooks and handlers a moment, write out what was said."""
        for exchange in tuple(self.connection.exchanges.values()):
            if isinstance(exchange.owner, HandlerTask):
                exchange.owner.abandon("the host closed the connection")
        hooks = [asyncio.ensure_future(hook()) for hook in self._cartridge.stop_hooks]
        if hooks:
            await asyncio.wait(hooks, timeout=_STOP_GRACE_S)
        self._timer.stop()
        end = self.loop.time() + _FLUSH_GRACE_S
        self.flush()
        while self.outbox.waiting_bytes and self.loop.time() < end:
            await asyncio.sleep(0.01)
            self.flush()
        self._link.close()


def _run(function: Callable[[], T]) -> T:
    try:
        return function()
    except StopIteration as error:
        # a future refuses it before Python 3.12: whoever waits for the function would wait for ever
        raise RuntimeError(f"the handler raised StopIteration: {error}") from error


def _report(_loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    print(f"cartdeck_sdk: {context.get('message')}: {error!r}", file=sys.stderr)


def seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    """A duration that the host set; `default` where it is absent or no positive number."""
    try:
        value = float(environment.get(name, default))
    except ValueError:
        return default
    return value if 0 < value < float("inf") else default
