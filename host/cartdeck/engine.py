"""Owns the engine: its life, and the public ways in. It is the only switch between callers and cartridges.

It does not know processes or frames; those are the pool's and the sessions'.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import anyio.to_thread

from cartdeck.calls.arguments import Prepared, prepare_instance
from cartdeck.calls.backlog import Backlog
from cartdeck.calls.call import Call
from cartdeck.calls.given import checked_arguments, checked_timeout
from cartdeck.calls.intake import KEEP_ALL
from cartdeck.calls.window import Reserve
from cartdeck.discovery import BrokenCartridge, Discovery, discover
from cartdeck.event_source import wait_for_end
from cartdeck.events import Result
from cartdeck.peers.forward import Forward, parent_of
from cartdeck.peers.memory_ask import is_ask
from cartdeck.pool.policy import SessionKey
from cartdeck.pool.pool import Pool
from cartdeck.pool.priority import Priority, PriorityName, priority_of
from cartdeck.pool.reset_mark import ALL, ResetMarks
from cartdeck.pool.visit import Visit
from cartdeck.request import Request
from cartdeck.router import Route, Router
from cartdeck.sessions.channel import Line
from cartdeck.sessions.clock import Clock
from cartdeck.sessions.leftover import remove_dead_folders
from cartdeck.sessions.session import Session
from cartdeck.sessions.tap import Tap
from cartdeck.sessions.trace import Trace, open_trace
from cartdeck.settings import Settings, load_settings
from cartdeck.stats import EngineStats
from cartdeck.status import CapEntry, CartridgeStatus
from cartdeck_protocol.caps import UNIVERSAL_CAPS
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Connection, RequestReceived


class Engine:
    """Runs caps in cartridges. An async context manager; all of it belongs to the loop in which it was entered.

    Without `settings` they are read from the configuration file when the engine is entered.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._given_settings = settings
        self._is_open = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tick_handle: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._discovery = Discovery()
        self._reset_marks: ResetMarks
        self._trace: Trace | None = None
        self.settings: Settings
        self.loop: asyncio.AbstractEventLoop
        self.clock: Clock
        self.router: Router
        self.pool: Pool
        self.reserve: Reserve
        self.backlog: Backlog

    # -- life

    async def __aenter__(self) -> Self:
        self.settings = self._given_settings or load_settings()
        self.loop = asyncio.get_running_loop()
        limits = self.settings.wire
        self.reserve = Reserve(limits.reserve_bytes, chunk_bytes=limits.max_chunk_bytes)
        self.backlog = Backlog(limits.backlog_bytes, limits.backlog_file_bytes, payload_bytes=limits.max_chunk_bytes)
        tick_s = self.settings.call.tick_s
        self.clock = Clock(self.loop.time(), tick_s=tick_s)
        self.pool = Pool(self.settings, self.clock, on_peer_call=self._on_peer_call, tap=self._tap)
        await self.discover()
        self._trace = await anyio.to_thread.run_sync(open_trace)
        self._is_open = True
        self._reset_marks = ResetMarks()
        self._tick_handle = self.loop.call_later(tick_s, self._tick)
        self.start_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call with ABORTED and every process by the ladder. Bounded by the settings `stop`; a caller that
        is cancelled meanwhile does not cut it short. Whoever calls it again waits for the same end."""
        if self._is_open:
            self._is_open = False
            if self._tick_handle is not None:
                self._tick_handle.cancel()
            self._closing = self.loop.create_task(self._close())
        if self._closing is not None:
            await wait_for_end(self._closing)
            self._closing.result()

    async def _close(self) -> None:
        await self.pool.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._trace is not None:
            await self.loop.run_in_executor(None, self._trace.close)

    async def _sweep(self) -> None:
        """What hosts that were killed left; beside what the caller is waiting for, and no longer than there is time."""
        await anyio.to_thread.run_sync(remove_dead_folders, lambda: self._is_open)

    def check_open(self) -> None:
        """Raises ABORTED outside of the engine's context."""
        if not self._is_open:
            raise failure(Code.ABORTED, "the engine is not open: use `async with cartdeck.Engine() as engine`")

    async def discover(self) -> None:
        """Look for cartridges anew. Sessions that run go on; failures are kept for an unchanged manifest alone."""
        before = {cartridge.name: cartridge.manifest for cartridge in self._discovery.cartridges}
        # In a worker thread: it reads files, and may run a program that prints its manifest.
        self._discovery = await anyio.to_thread.run_sync(discover, self.settings)
        unread = [broken.origin for broken in self._discovery.broken]
        self.router = Router(self._discovery.cartridges, self.settings.prefer, unread=unread)
        for cartridge in self._discovery.cartridges:
            if before.get(cartridge.name, cartridge.manifest) != cartridge.manifest:
                self.pool.reset(cartridge.name)

    def _tick(self) -> None:
        # First, so that a fault in one tick does not stop the clock for ever.
        self._tick_handle = self.loop.call_later(self.settings.call.tick_s, self._tick)
        try:
            self.pool.tick(self.clock.tick(self.loop.time()))
        finally:
            for name in self._reset_marks.news():
                self.pool.reset(None if name == ALL else name)

    # -- calls

    def call(
        self,
        cap: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        keep_bytes: int | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> Call:
        """A call of `cap` (a URN, or an alias alone), to be used as `async with engine.call(...) as call`.

        Entering it routes and checks: what is wrong with the cap or an argument is raised there. `timeout_s` bounds
        the whole call, waiting included; None is no limit. `keep_bytes` is how much of the output the result keeps;
        without it the setting says, and it is less while other calls keep much. `priority` is the class of the call,
        "critical", "standard" or "opportunistic": which instances may be ended for it, and which calls it waits for.
        """
        call = Call(self, cap, arguments, timeout_s=timeout_s, keep_bytes=keep_bytes)
        call.priority = priority_of(priority)
        return call

    async def run(
        self,
        cap: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> Result:
        """Run `cap` to its end and give its result, all of it. A caller that is cancelled cancels the call."""
        call = self.call(cap, arguments, timeout_s=timeout_s, keep_bytes=KEEP_ALL, priority=priority)
        call.begin()
        try:
            return await call.collect()
        finally:
            call.cancel("the caller left")  # does nothing after the end

    def submit(self, request: Request, route: Route, prepared: Prepared) -> None:
        """Send a request on its way. Raises what refuses it at the door."""
        request.route = route
        request.prepared = prepared
        request.key = SessionKey(route.cartridge.name, prepared.instance)
        self.pool.enter(request)

    def leave(self, request: Request) -> None:
        """Take a waiting request out of its queue."""
        self.pool.leave(request)

    def _tap(self, name: str, pid: int, connection: Connection) -> Line:
        """What a session's channel drives: without a trace nothing stands in between."""
        return connection if self._trace is None else Tap(connection, self._trace, session=name, pid=pid)

    def _on_peer_call(self, session: Session, event: RequestReceived) -> None:
        connection = session.connection
        try:
            parent = parent_of(session, event)
            if is_ask(event.cap):
                self.pool.ask_memory(session, event, parent)
            else:
                Forward(self, session, event, parent).submit()
        except CartdeckError as error:
            connection.fail(event.exchange, error)
            session.flush_soon()

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work` in a task of the engine's, ended with it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- sessions

    async def load(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> None:
        """Start the session that a call of `target` (a cap, or a cartridge by its name) with these instance arguments
        would use, and wait until it is ready. The instance itself is loaded by the cartridge with its first call."""
        self.check_open()
        limit_s = checked_timeout(timeout_s)
        route, prepared = self._instance_of(target, checked_arguments(arguments))
        visit = Visit(self.loop)
        visit.priority = priority_of(priority)
        self.submit(visit, route, prepared)
        try:
            async with asyncio.timeout(limit_s):
                await visit.answer
        except TimeoutError:
            raise failure(Code.TIMED_OUT, f"{visit.key} was not ready within {limit_s:g} s") from None
        finally:
            self.pool.leave(visit)

    def classify(
        self, target: str, arguments: Mapping[str, Any] | None = None, *, priority: PriorityName = Priority.STANDARD
    ) -> bool:
        """Say of which class the instance is that a call of `target` with these arguments uses, until a call of a
        higher one comes to it. Whether there is such an instance now."""
        self.check_open()
        route, prepared = self._instance_of(target, checked_arguments(arguments))
        return self.pool.classify(SessionKey(route.cartridge.name, prepared.instance), priority_of(priority))

    def is_loaded(self, target: str, arguments: Mapping[str, Any] | None = None) -> bool:
        """Whether there is an instance now that a call of `target` with these arguments would use, or one starts."""
        self.check_open()
        route, prepared = self._instance_of(target, checked_arguments(arguments))
        door = self.pool.doors.get(SessionKey(route.cartridge.name, prepared.instance))
        return door is not None and door.session is not None

    async def unload(self, target: str | None = None, arguments: Mapping[str, Any] | None = None) -> int:
        """End sessions: of one cap with these instance arguments; of a cartridge by its name; all without a target.

        Calls that are open there finish first. How many sessions there were.
        """
        self.check_open()
        given = checked_arguments(arguments)
        keys = [session.key for session in self.pool.sessions]
        if target is not None and self.router.of_cartridge(target) is not None and not given:
            keys = [key for key in keys if key.cartridge == target]
        elif target is not None:
            route, prepared = self._instance_of(target, given)
            keys = [SessionKey(route.cartridge.name, prepared.instance)]
        return await self.pool.unload(keys)

    def _instance_of(self, target: str, arguments: Mapping[str, Any]) -> tuple[Route, Prepared]:
        route = self.router.of_cartridge(target) or self.router.route_text(target, arguments)
        return route, prepare_instance(route.definition, route.instance, arguments)

    def reset(self, cartridge: str | None = None) -> int:
        """Forget failures, so that a quarantined session may start again. How many there were."""
        self.check_open()
        return self.pool.reset(cartridge)

    # -- what is there

    def caps(self) -> list[CapEntry]:
        """The caps of all cartridges, without those that every cartridge serves."""
        return [
            CapEntry(cartridge.name, definition, cartridge.is_available)
            for cartridge in self._discovery.cartridges
            for definition in cartridge.manifest.caps
            if definition.alias not in UNIVERSAL_CAPS
        ]

    def cartridges(self) -> list[CartridgeStatus]:
        """The cartridges found, with their sessions."""
        statuses = self.pool.statuses()
        return [
            CartridgeStatus(cartridge, tuple(one for one in statuses if one.key.cartridge == cartridge.name))
            for cartridge in self._discovery.cartridges
        ]

    def stats(self) -> EngineStats:
        """What each session key did and does, and the sums: made when asked for, from counters that run anyway."""
        self.check_open()
        return self.pool.stats()

    def broken(self) -> list[BrokenCartridge]:
        """The declarations that led to no usable cartridge."""
        return list(self._discovery.broken)
