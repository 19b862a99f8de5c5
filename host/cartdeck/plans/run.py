"""Owns a plan that runs: which steps may start, what follows from a failure, the cancel, and the one end.

It does not know how a step is carried out. It holds no task group across its caller's code: its tasks are the engine's,
so it may be opened in one task and closed in another, and errors arrive bare.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from cartdeck.calls.pulling import Source
from cartdeck.engine import Engine
from cartdeck.event_source import EventSource, wait_for_end
from cartdeck.plans.call_key import CallKeys
from cartdeck.plans.compiling import CompiledPlan, Value
from cartdeck.plans.events import PlanEnded, PlanEvent, StepState
from cartdeck.plans.flow import Flow
from cartdeck.plans.graph import ABSENT, FAIL
from cartdeck.plans.inputs import EntryCheck, check_inputs, compiled_for, depths_of, entries_of
from cartdeck.plans.kept import Kept
from cartdeck.plans.plan import Plan
from cartdeck.plans.result import Output, PlanResult
from cartdeck.plans.slots import Slots
from cartdeck.plans.spool import Budget, Spool
from cartdeck.plans.step_making import StepMaker
from cartdeck.plans.step_run import Context, StepRun
from cartdeck.plans.tally import PlanTally
from cartdeck.plans.telling import Telling
from cartdeck_protocol.errors import CartdeckError, Code, failure

AT_ONCE: Final = 256
"""So many calls of one run may be open at once, whatever the cartridges take."""
MEMORY_BYTES: Final = 32 * 1024 * 1024
"""What values between steps may take in memory; what is beyond lies in temporary files."""


class PlanRun(EventSource[PlanEvent]):
    """A plan on its way. Use it as an async context manager and iterate over it, or `collect()`.

    Leaving the context before the end cancels the plan, and waits until its calls have ended. `result` is there
    after the last event.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan | CompiledPlan | str,
        inputs: Mapping[str, Any] | None = None,
        *,
        on_error: str = FAIL,
        state: Path | None = None,
        at_once: int = AT_ONCE,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`on_error` is for steps that set none; `state` is the folder in which finished calls are kept. A plan that is
        compiled already must have been so with this engine's `router`.
        """
        self._engine = engine
        self._given = plan if isinstance(plan, CompiledPlan) else None
        plan = plan.plan if isinstance(plan, CompiledPlan) else plan
        self._plan = Plan.parse(plan) if isinstance(plan, str) else plan
        self._inputs = dict(inputs or {})
        self._state = state
        self._limits = (at_once, memory_bytes)
        if on_error not in (FAIL, ABSENT):
            raise failure(Code.BAD_ARGUMENT, f"on_error is {on_error!r:.40}; expected {FAIL} or {ABSENT}")
        self._on_error = on_error
        self._telling = Telling()
        self._checks: dict[str, EntryCheck] = {}
        self._maker: StepMaker | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._outputs: dict[str, Output] = {}
        self._kept: Kept | None = None
        self._context: Context
        self._open = 0
        self._error: CartdeckError | None = None
        self._is_stopping = False
        self._done: asyncio.Future[None] | None = None
        self._has_told_end = False
        self.compiled: CompiledPlan
        self.tally: PlanTally

    # -- for the caller

    async def next_events(self) -> list[PlanEvent]:
        """The next events, waiting for at least one; [] after the end. Raises the plan's error behind the last one."""
        if self._has_told_end:
            if self._error is not None:
                raise self._error
            return []
        self._begun()
        await self._telling.wait()
        events = self._telling.take()
        self._has_told_end = bool(events) and isinstance(events[-1], PlanEnded)
        return events

    async def follow(self, output: str) -> AsyncIterator[Any]:
        """The entries of an output as they come, while somebody else looks at the events: pieces of bytes, or items.
        Whoever reads slowly holds up the step that gives them. Raises the plan's error, behind what came before it."""
        done = self._begun()
        async for entry in self.report.output(output).follow(done):
            yield entry

    async def collect(self) -> PlanResult:
        """Wait for the end without looking at the events; the result. Raises the plan's error."""
        done = self._begun()
        self._telling.turn_off()
        await asyncio.shield(done)
        return self.result

    @property
    def result(self) -> PlanResult:
        """What the plan gave. Raises its error if it failed, RuntimeError while it runs."""
        if self._done is None or not self._done.done():
            raise RuntimeError("the plan has not ended: iterate over its events first, or use collect()")
        if self._error is not None:
            raise self._error
        return self.report

    @property
    def report(self) -> PlanResult:
        """What there is of the result, also of a plan that failed: each step's state, and what outputs there are."""
        return PlanResult(self._outputs, {} if self._maker is None else self._maker.reports())

    @property
    def error(self) -> CartdeckError | None:
        """The error of a plan that has failed, before it is at its end too."""
        return self._error

    @property
    def spilled(self) -> dict[str, int]:
        """How many pieces or items of each value went to a temporary file."""
        flows = {} if self._maker is None else self._maker.flows
        return {name: flow.spool.spilled for name, flow in flows.items() if flow.spool.spilled}

    def cancel(self, reason: str = "the caller cancelled it") -> None:
        """Give the plan up, wherever it stands: every call is cancelled. Does nothing after the end."""
        if self._done is not None and not self._done.done():
            self._stop(failure(Code.CANCELLED, f"the plan was cancelled: {reason}"), None)

    async def close(self) -> None:
        """Cancel the plan if it runs, and wait until nothing of it is left, also for a caller that is cancelled."""
        if self._done is None:
            return
        self.cancel("its caller left")
        await wait_for_end(self._done)

    # -- the beginning

    def begin(self) -> None:
        """Compile, and start what can start. Raises at once what is wrong with the plan or its inputs."""
        if self._done is not None:
            raise RuntimeError("a plan can be run once")
        engine, plan = self._engine, self._plan
        engine.check_open()
        if self._given is None:
            self.compiled = compiled_for(plan, engine.router, self._inputs)
        else:
            check_inputs(plan, self._inputs)
            self.compiled = self._given.with_depths(engine.router, depths_of(self._given, self._inputs))
        given = {value.name: self._entries(value) for value in self.compiled.inputs}
        self._kept = None if self._state is None else Kept(self._state)
        self.tally = PlanTally(len(self.compiled.steps))
        at_once, memory_bytes = self._limits
        budget = Budget(memory_bytes)
        context = self._context = Context(
            engine=engine,
            budget=budget,
            slots=Slots(at_once),
            telling=self._telling,
            tally=self.tally,
            kept=self._kept,
            keys=None if self._kept is None else CallKeys(self._kept, engine),
            on_error=self._on_error,
            at_once=at_once,
            on_begun=self._on_step_begun,
            on_ended=self._on_step_ended,
        )
        maker = self._maker = StepMaker(self.compiled, context)
        self._done = engine.loop.create_future()
        for value in self.compiled.inputs:
            self._offer(maker.flow(value.name), given[value.name], budget)
        for value in self.compiled.outputs:
            flow = maker.flow(value.name)
            self._outputs[value.name] = Output(flow, flow.reader(keeps=True), value.media)
        self._open = len(self.compiled.steps)
        for step in maker.made_first():
            self._watch(step)

    def _entries(self, value: Value) -> Any:
        """The entries of an input; those that are there are checked, others when they come."""
        entries: Any = entries_of(self._inputs[value.name], value.depth)
        check = self._checks[value.name] = EntryCheck(self.compiled, value.name, self._inputs[value.name])
        for entry in cast("list[Any]", entries) if isinstance(entries, list) else ():
            check.check(entry, value.depth - 1)
        return cast("Any", entries)

    def _begun(self) -> "asyncio.Future[None]":
        if self._done is None:
            raise RuntimeError("the plan is not open: use `async with PlanRun(...) as run`")
        return self._done

    def _offer(self, flow: Flow, entries: Any, budget: Budget) -> None:
        """Fill an input: at once, or by a task as it comes."""
        if isinstance(entries, list):
            flow.spool = Spool.of(cast("list[Any]", entries), budget)
            flow.has_begun = True
        else:
            self._pumps.append(self._engine.start_task(self._pump(flow, entries)))

    async def _pump(self, flow: Flow, entries: Any) -> None:
        try:
            if isinstance(entries, AsyncIterable):
                async for entry in cast("AsyncIterable[Any]", entries):
                    await self._put(flow, entry)
            else:
                source, is_done = Source(iter(entries)), False
                while not is_done:
                    found, is_done = await source.next_items()
                    for entry in found:
                        await self._put(flow, entry)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            message = f"the input {flow.name} failed with {type(error).__name__}: {error}"
            self._stop(failure(Code.BAD_ARGUMENT, message, argument=flow.name), None)
            return
        flow.end()

    async def _put(self, flow: Flow, entry: Any) -> None:
        try:
            if not flow.depth and not isinstance(entry, bytes | str):
                message = f"a part of {flow.name} must be bytes or text, found {type(entry).__name__}"
                raise failure(Code.BAD_ARGUMENT, message, argument=flow.name)
            self._checks[flow.name].check(entry, flow.depth - 1)
        except CartdeckError as error:
            self._stop(error, None)  # as it is: what the pump tells is a fault of the iterable
            raise
        flow.put(entry)
        flow.begin()
        while flow.spool.is_full:
            await flow.spool.room(3600.0)

    # -- who may start

    def _on_step_begun(self, step: StepRun) -> None:
        """Its call is on its way, and nothing of what it gives has come: those that read it are made meanwhile."""
        assert self._maker is not None
        for reader in self._maker.made_readers(step):
            self._watch(reader)

    def _watch(self, step: StepRun) -> None:
        """Start the step when its sources have come far enough.

        A value streams: its first piece is enough. A sequence that another mapped step gives is waited for to its end
        where the step takes it as a whole, or where both hold a model: calls of the two would wait for each other's
        place. With kept results all sources must be there, as they are part of a call's name.
        """
        for name, flow in step.sources.items():
            needs_end = step.kept is not None or self._must_wait_for_end(step, name)
            if flow.is_ended if needs_end else flow.has_begun:
                continue
            step.waits_for += 1
            (flow.when_ended if needs_end else flow.when_begun)(lambda: self._on_source(step))
        if not step.waits_for:
            self._start(step)

    def _must_wait_for_end(self, step: StepRun, source: str) -> bool:
        producer = self.compiled.values[source].producer
        if producer is None or not self.compiled.steps[producer].loops:
            return False
        is_gathered = any(
            one.source == source and one.argument.is_sequence and one.loops < self.compiled.values[source].depth
            for one in step.compiled.bindings
        )
        giver = self.compiled.steps[producer].route.cartridge.manifest
        taker = step.compiled.route.cartridge.manifest
        return is_gathered or (giver.holds_instances and taker.holds_instances)

    def _on_source(self, step: StepRun) -> None:
        step.waits_for -= 1
        if not step.waits_for and not self._is_stopping and not step.state.is_final:
            self._start(step)

    def _start(self, step: StepRun) -> None:
        """In the task of the step that has just made it ready by its end, or in one of its own."""
        giver = self._context.ending
        if giver is not None and giver.follower is None:
            giver.follower = step
            step.task = giver.task
        else:
            step.task = self._engine.start_task(_carry_out(step))

    # -- the end

    def _on_step_ended(self, step: StepRun) -> None:
        self._open -= 1
        if step.is_fatal and not self._is_stopping:
            assert step.report.error is not None
            self._stop(step.report.error, step.name)
        elif step.state is StepState.CANCELLED and not self._is_stopping:
            self._stop(failure(Code.ABORTED, "the engine was closed while the plan ran"), None)
        else:
            for target in step.targets.values():
                if not target.is_ended:
                    target.fail(failure(Code.CANCELLED, f"the step {step.name} ended without a result"))
        if not self._open:
            self._finish()

    def _stop(self, error: CartdeckError, because: str | None) -> None:
        """The plan cannot go on: what runs is cancelled, what has not begun is skipped."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._error = error
        for pump in self._pumps:
            pump.cancel()
        assert self._maker is not None
        for step in self._maker.made_all():
            if step.state.is_final:
                continue
            step.stopped_by = because
            if step.task is not None:
                step.task.cancel()
            if step.state is StepState.WAITING:
                state = StepState.SKIPPED if because is not None else StepState.CANCELLED
                step.finish(state, because=because)
        for flow in self._maker.flows.values():
            if not flow.is_ended:
                flow.fail(error)

    def _finish(self) -> None:
        done = self._done
        if done is None or done.done():
            return
        for pump in self._pumps:
            pump.cancel()
        if self._error is None:
            self.tally.succeed()
        if self._kept is not None:
            self._kept.close()
        # So that a run nobody holds is gone, and its files with it.
        self._context.on_begun = self._context.on_ended = _no_more
        self._telling.tell(PlanEnded(self.tally.overall, self._error))
        done.set_result(None)


async def _carry_out(step: StepRun | None) -> None:
    """Execute a step, and those that follow at its end: a chain of short steps needs no turn of the loop in between."""
    while step is not None and step.state is StepState.WAITING:
        await step.execute()
        step = step.follower


def _no_more(_step: StepRun) -> None:
    """All steps have ended."""


async def run_plan(
    engine: Engine, plan: Plan | CompiledPlan | str, inputs: Mapping[str, Any] | None = None, **options: Any
) -> PlanResult:
    """Run a plan to its end and give its result, with the options of PlanRun. A caller that is cancelled cancels it."""
    async with PlanRun(engine, plan, inputs, **options) as run:
        return await run.collect()
