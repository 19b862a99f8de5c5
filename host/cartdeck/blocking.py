"""Owns the engine for callers that do not await: the same names, from any thread.

It does not know calls or sessions: it hands each step to the loop of an engine that runs in a thread of its own.
"""

import atexit
import contextlib
import importlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from anyio.from_thread import BlockingPortal

from cartdeck.calls.call import Call
from cartdeck.discovery import BrokenCartridge
from cartdeck.engine import Engine
from cartdeck.events import Event, Result
from cartdeck.loop_thread import LoopThread
from cartdeck.pool.priority import Priority, PriorityName
from cartdeck.settings import Settings
from cartdeck.stats import EngineStats
from cartdeck.status import CapEntry, CartridgeStatus
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck.plans.blocking_run import BlockingPlanRun
    from cartdeck.plans.compiling import CompiledPlan
    from cartdeck.plans.plan import Plan
    from cartdeck.plans.result import PlanResult

T = TypeVar("T")


class BlockingCall:
    """A call, for one thread at a time: a context manager to iterate over. Leaving it early cancels the call."""

    def __init__(self, engine: "BlockingEngine", call: Call) -> None:
        self._engine = engine
        self._call = call
        self._is_begun = False

    def __enter__(self) -> Self:
        self._engine.on_loop(self._call.begin)
        self._is_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError, CartdeckError):  # the portal is closed, and the call with it
            self._engine.on_loop(self._call.leave)

    def __iter__(self) -> Iterator[Event]:
        self._check_begun()
        # A batch for each hop between the threads, since a hop costs more than an event.
        while batch := self._engine.wait_for(self._call.next_events):
            yield from batch

    def collect(self) -> Result:
        """Wait for the end without looking at the events; the result. Raises the call's error."""
        self._check_begun()
        return self._engine.wait_for(self._call.collect)

    @property
    def result(self) -> Result:
        """What the call gave, once the iteration has come to its end. Raises the call's error if it failed."""
        self._check_begun()
        return self._call.result

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the call up; it ends with CANCELLED. Does nothing after the end, or when the engine is closed."""
        with contextlib.suppress(RuntimeError, CartdeckError):  # the portal is closed, and the call with it
            self._engine.on_loop(self._call.cancel, reason)

    def _check_begun(self) -> None:
        if not self._is_begun:
            raise RuntimeError("the call is not open: use `with engine.call(...) as call`")


class BlockingEngine:
    """An engine whose methods block. Made by `open`. One that is never closed is closed when the main thread ends."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._engine = Engine(settings)
        self._exits = ExitStack()
        self._portal: BlockingPortal | None = None
        self._is_taking = False
        self._pid = os.getpid()
        """Whose threads run it: a fork has the engine's memory and none of them."""
        self._gate = threading.RLock()  # held for no longer than a hand-over; a signal's handler may come in between

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise RuntimeError("the engine is open already; make another with cartdeck.open()")
        self._pid = os.getpid()
        with ExitStack() as exits:
            portal = exits.enter_context(LoopThread("cartdeck-engine"))
            exits.enter_context(portal.wrap_async_context_manager(self._engine))
            self._exits = exits.pop_all()
        self._portal = portal
        self._is_taking = True
        _OPEN.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OPEN.discard(self)
        if self._pid != os.getpid():
            return  # the engine goes on in the process that opened it
        with self._gate:  # what was handed over before has an answer; behind it the loop may be gone
            self._is_taking = False
            exits, self._exits = self._exits, ExitStack()
        try:
            exits.__exit__(kind, error, trace)
        finally:
            self._portal = None

    def close(self) -> None:
        """End every call and every process; for one who cannot use `with`."""
        self.__exit__(None, None, None)

    # -- between the threads

    def on_loop(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a plain function on the engine's loop."""
        return _result(self._hand_over(function, *arguments))

    def wait_for(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the engine's loop and wait. A KeyboardInterrupt here cancels it there, so that
        a Ctrl-C leaves nothing behind that still waits."""
        future = self._hand_over(function)
        try:
            return _result(future)
        except BaseException:
            if not future.done():
                future.cancel()
            raise

    def _hand_over(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        if self._pid != os.getpid():  # looked at first: who held the gate at the fork will never give it back
            message = f"the engine was opened in process {self._pid}, and this is a fork of it: open one here"
            raise failure(Code.ABORTED, message + ", or start the process with spawn")
        with self._gate:
            if self._portal is None or not self._is_taking:
                raise failure(Code.ABORTED, "the engine is not open: use `with cartdeck.open() as engine`")
            return self._portal.start_task_soon(function, *arguments)

    # -- the engine's names

    def call(
        self,
        cap: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        keep_bytes: int | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> BlockingCall:
        """As `Engine.call`: `with engine.call(...) as call: for event in call: ...`, then `call.result`."""
        call = self._engine.call(cap, arguments, timeout_s=timeout_s, keep_bytes=keep_bytes, priority=priority)
        return BlockingCall(self, call)

    def run(
        self,
        cap: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> Result:
        """As `Engine.run`. A KeyboardInterrupt cancels the call."""
        return self.wait_for(partial(self._engine.run, cap, arguments, timeout_s=timeout_s, priority=priority))

    def plan(
        self, plan: "Plan | CompiledPlan | str", inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> "BlockingPlanRun":
        """A plan on its way, with the options of PlanRun: `with engine.plan(...) as run: for event in run: ...`, then
        `run.result`. Raises BAD_PLAN for a text that is none; what else is wrong is raised by entering it."""
        # Loaded when it is asked for: an application without plans need not wait for what they take.
        from cartdeck.plans.blocking_run import BlockingPlanRun  # noqa: PLC0415 - see above
        from cartdeck.plans.run import PlanRun  # noqa: PLC0415 - see above

        return BlockingPlanRun(self, PlanRun(self._engine, plan, inputs, **options))

    def run_plan(
        self, plan: "Plan | CompiledPlan | str", inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> "PlanResult":
        """The result of a plan, run to its end. A KeyboardInterrupt cancels it."""
        with self.plan(plan, inputs, **options) as run:
            return run.collect()

    def load(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        priority: PriorityName = Priority.STANDARD,
    ) -> None:
        """As `Engine.load`."""
        self.wait_for(partial(self._engine.load, target, arguments, timeout_s=timeout_s, priority=priority))

    def classify(
        self, target: str, arguments: Mapping[str, Any] | None = None, *, priority: PriorityName = Priority.STANDARD
    ) -> bool:
        """As `Engine.classify`."""
        return self.on_loop(partial(self._engine.classify, target, arguments, priority=priority))

    def unload(self, target: str | None = None, arguments: Mapping[str, Any] | None = None) -> int:
        """As `Engine.unload`."""
        return self.wait_for(partial(self._engine.unload, target, arguments))

    def reset(self, cartridge: str | None = None) -> int:
        """As `Engine.reset`."""
        return self.on_loop(self._engine.reset, cartridge)

    def caps(self) -> list[CapEntry]:
        """As `Engine.caps`."""
        return self.on_loop(self._engine.caps)

    def cartridges(self) -> list[CartridgeStatus]:
        """As `Engine.cartridges`."""
        return self.on_loop(self._engine.cartridges)

    def stats(self) -> EngineStats:
        """As `Engine.stats`."""
        return self.on_loop(self._engine.stats)

    def broken(self) -> list[BrokenCartridge]:
        """As `Engine.broken`."""
        return self.on_loop(self._engine.broken)


def _result(future: "Future[T]") -> T:
    """What the loop answers, however long it takes. The wait is taken in slices: a signal that comes between Python's
    last look for one and the lock's own wait is seen only when that wait ends."""
    while True:
        try:
            return future.result(_SLICE_S)
        except TimeoutError:
            if future.done():  # raised on the loop, not by the wait
                raise


_SLICE_S: Final = 0.25

_OPEN: Final[WeakSet[BlockingEngine]] = WeakSet()
"""Engines that somebody may forget to close."""


def _close_forgotten() -> None:
    for engine in tuple(_OPEN):
        with contextlib.suppress(Exception):  # the interpreter ends: nobody is left to be told
            engine.close()


# `atexit` alone is asked after the threads have been waited for, which an engine's would keep waiting. What executors
# register is loaded first: the last to register is the first to be asked, and an engine needs them for its end.
importlib.import_module("concurrent.futures.thread")
_at_exit: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_at_exit(_close_forgotten)


def open(settings: Settings | None = None) -> BlockingEngine:  # read as `cartdeck.open()`
    """An engine for callers that do not await: `with cartdeck.open() as engine: engine.run(...)`."""
    return BlockingEngine(settings)
