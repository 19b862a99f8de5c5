"""Owns what every step of a running plan has: its state, its one end, its tries, its calls' places and words.

It does not know whether the step is one call or many, nor the other steps.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cartdeck.plans.call_key import CallKeys
from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.conformance import conformance_of
from cartdeck.plans.convert import Absent
from cartdeck.plans.events import ItemFailed, StepEnded, StepLog, StepProgress, StepStarted, StepState
from cartdeck.plans.fault import at_place
from cartdeck.plans.flow import Flow
from cartdeck.plans.graph import ABSENT
from cartdeck.plans.kept import Kept
from cartdeck.plans.model_hash import OBTAIN
from cartdeck.plans.report import StepReport
from cartdeck.plans.slots import Slots
from cartdeck.plans.spool import Budget, Reader
from cartdeck.plans.step_call import StepCall
from cartdeck.plans.tally import PlanTally, StepTally
from cartdeck.plans.telling import Telling
from cartdeck.switch import Switch
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Logged

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
_READER_SHARE: Final = 1 / 3
_NO_STEP_ERROR: Final = frozenset({Code.CANCELLED, Code.ABORTED})

T = TypeVar("T")
AnyCall = TypeVar("AnyCall", bound=StepCall)


@dataclass(slots=True)
class Context:
    """What the steps of one run share."""

    engine: Switch
    budget: Budget
    slots: Slots
    telling: Telling
    tally: PlanTally
    kept: Kept | None
    keys: CallKeys | None
    on_error: str
    at_once: int
    on_begun: "Callable[[StepRun], None]"
    """Called before anything of what the step gives comes, once or more often."""
    on_ended: "Callable[[StepRun], None]"
    ending: "StepRun | None" = None
    """The step whose result has just become whole: what that makes ready may follow in its task."""


class Missing(Exception):  # no error: it says that the step has nothing to work on
    """A value that the step cannot do without is absent."""

    def __init__(self, absent: Absent) -> None:
        super().__init__()
        self.absent = absent


class StepRun(ABC):
    """A step that is run once. `execute` is the body of its task."""

    __slots__ = (
        "_began_at_s", "capacity", "cartridge", "compiled", "conformances", "context", "follower", "is_absentable",
        "is_missed", "is_reused", "kept", "report", "retry", "sources", "stopped_by", "tally", "targets", "task",
        "timeout_s", "waits_for",
    )  # fmt: skip

    def __init__(
        self, context: Context, compiled: CompiledStep, sources: dict[str, Flow], targets: dict[str, Flow]
    ) -> None:
        self.context = context
        self.compiled = compiled
        self.sources = sources
        self.targets = targets
        """The values that it gives, by the names of the cap's outputs, "" being the main one."""
        settings = compiled.step.settings
        self.retry = settings.retry or 0
        self.is_absentable = (settings.on_error or context.on_error) == ABSENT
        self.timeout_s = settings.timeout_s
        self.cartridge = compiled.route.cartridge.name
        self.capacity = compiled.route.cartridge.manifest.capacity
        self.conformances = {
            name: conformance_of(output)
            for name, output in compiled.definition.outputs.items()
            if not name or name in targets
        }
        is_of_moment = any(cap.alias == OBTAIN for cap in compiled.route.cartridge.manifest.caps)
        self.kept = None if is_of_moment else context.kept
        """Where what it gives is kept. What the models cartridge says holds for the moment: files come and go."""
        self.report = StepReport(compiled.name, cartridge=self.cartridge)
        self.tally = StepTally(context.tally, None if compiled.loops else 1)
        self.waits_for = 0
        """So many sources have not come far enough for it to start."""
        self.is_reused = False
        """All that it gives was kept from an earlier run."""
        self.is_missed = False
        """It gives nothing, and the plan goes on without it."""
        self.stopped_by: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.follower: StepRun | None = None
        """A step that its end made ready, to be executed in the same task."""
        self._began_at_s = 0.0

    @property
    def name(self) -> str:
        return self.compiled.name

    @property
    def state(self) -> StepState:
        return self.report.state

    @abstractmethod
    async def run(self) -> None:
        """Do the step's work, and fill its target. Raises Missing, or the error that ends it."""

    async def execute(self) -> None:
        """Run to the one end."""
        self._began_at_s = time.monotonic()
        self.report.state = StepState.RUNNING
        compiled = self.compiled
        if self.context.telling.is_wanted:
            alias = compiled.definition.alias
            self.context.telling.tell(StepStarted(self.name, alias, self.cartridge, bool(compiled.loops)))
        try:
            await self.run()
        except asyncio.CancelledError:
            self.finish(StepState.CANCELLED, because=self.stopped_by)
        except Missing as missing:
            self._miss(missing.absent)
            self.finish(StepState.SKIPPED, because=missing.absent.step)
        except CartdeckError as error:
            self._fail(error)
        except Exception as error:  # a mistake of ours must end the plan, not leave it waiting
            message = f"{type(error).__name__} in the plan's runner: {error}"
            self._fail(failure(Code.INTERNAL, message))
            raise
        else:
            self.finish(StepState.REUSED if self.is_reused else StepState.DONE)

    def _fail(self, error: CartdeckError) -> None:
        if error.code in _NO_STEP_ERROR and self.stopped_by is not None:
            self.finish(StepState.CANCELLED, because=self.stopped_by)
            return
        placed = at_place(error, self.compiled.step.place("step"), step=self.name)
        is_begun = any(target.has_begun for target in self.targets.values())
        if self.is_absentable and error.code not in _NO_STEP_ERROR and not is_begun:
            self._miss(Absent(self.name, (), placed))
        self.finish(StepState.FAILED, error=placed)

    def _miss(self, absent: Absent) -> None:
        self.is_missed = True
        self.report.missing.append(absent)
        self.context.on_begun(self)
        for target in self.targets.values():
            target.drop()
            target.miss(absent)

    def finish(self, state: StepState, *, because: str | None = None, error: CartdeckError | None = None) -> None:
        """The one end. What it gives is whole by now, or there is none."""
        report = self.report
        report.state, report.because, report.error = state, because, error
        if self._began_at_s:
            report.seconds = time.monotonic() - self._began_at_s
        if state in (StepState.DONE, StepState.REUSED) or self.is_missed:  # in each case the plan goes on behind it
            self.tally.end()
        if self.context.telling.is_wanted:
            self.context.telling.tell(StepEnded(self.name, state, self.context.tally.overall, because, error))
        self.context.on_ended(self)

    def end_targets(self) -> None:
        """What the step gives is whole."""
        context = self.context
        for target in self.targets.values():
            context.ending = self
            try:
                target.end()
            finally:
                context.ending = None

    @property
    def is_fatal(self) -> bool:
        """The plan cannot go on."""
        return self.state is StepState.FAILED and not self.is_missed

    # -- calls

    def make_call(
        self, arguments: dict[str, Any], item: tuple[int, ...], *, keeps: bool, kind: type[AnyCall] = StepCall
    ) -> AnyCall:
        return kind(
            self.context.engine,
            self.compiled.route.urn,
            arguments,
            timeout_s=self.timeout_s,
            keeps=keeps,
            listener=self,
            conformances=self.conformances,
            item=item,
        )

    @property
    def longest_hold_s(self) -> float:
        """How long a call may be left unread: well below the engine's own limit."""
        return self.context.engine.settings.call.reader_s * _READER_SHARE

    async def with_tries(self, once: Callable[[], Awaitable[T]]) -> T:
        """`once`, again after errors that may pass, as often as the step's `retry` says."""
        failed = 0
        while True:
            try:
                return await once()
            except CartdeckError as error:
                if failed >= self.retry or error.error_class.is_permanent:
                    raise
                failed += 1
                pause_s = _pause_s(failed, error)
                self.say("warning", (), f"failed with {error.code_name}: {error}; tried again in {pause_s:.1f} s")
                await asyncio.sleep(pause_s)

    async def key(self, arguments: dict[str, Any], readers: Mapping[str, Sequence[Reader]]) -> str:
        """The key of a call among kept results. Raises what obtaining its models raises."""
        keys, route = self.context.keys, self.compiled.route
        assert keys is not None
        listener = _Obtaining(self)
        models = await self.with_tries(lambda: keys.model_lines(route.definition, arguments, listener, self.timeout_s))
        return await keys.key(route, arguments, readers, models=models)

    # -- what calls say

    def on_progress(self, call: StepCall, event: Logged) -> None:
        fraction = event.progress
        if fraction is not None and fraction > call.fraction:
            self.tally.advance(fraction - call.fraction)
            call.fraction = fraction
        self.show(call.item, phase=event.phase, message=event.message, work=event.work, total=event.total)

    def on_notice(self, call: StepCall, message: str, phase: str) -> None:
        self.show(call.item, phase=phase, message=message)

    def on_line(self, call: StepCall, event: Logged) -> None:
        self.say(event.level, call.item, event.message)

    def say(self, level: str, item: tuple[int, ...], message: str) -> None:
        self.context.telling.tell(StepLog(self.name, item, level, message, self.cartridge))

    def show(
        self,
        item: tuple[int, ...],
        *,
        phase: str | None = None,
        message: str = "",
        work: float | None = None,
        total: float | None = None,
    ) -> None:
        """Tell the caller how far the step is. What is still waiting for the caller is brought up to date instead."""
        telling = self.context.telling
        if not telling.is_wanted:
            return
        tally, overall = self.tally, self.context.tally.overall
        count = tally.count if self.compiled.loops else None
        waiting = telling.waiting_progress(self.name)
        if waiting is None:
            event = StepProgress(
                self.name, item, tally.fraction, overall, phase, message, work, total, tally.done, count, self.cartridge
            )
            telling.tell_progress(event)
            return
        waiting.fraction, waiting.overall, waiting.items_done, waiting.items_total = (
            tally.fraction, overall, tally.done, count,
        )  # fmt: skip
        if phase is not None or message:
            waiting.item, waiting.phase, waiting.message = item, phase, message
            waiting.work, waiting.total = work, total

    def lose(self, item: tuple[int, ...], error: CartdeckError) -> Absent:
        """An item of the step failed, and the step goes on."""
        placed = at_place(error, self.compiled.step.place("step"), step=self.name)
        placed.details["item"] = list(item)
        absent = Absent(self.name, item, placed)
        self.report.missing.append(absent)
        self.context.telling.tell(ItemFailed(self.name, item, placed))
        return absent


class _Obtaining:
    """Shows what is said while the files of a step's models are looked at; it is no part of the step's progress."""

    def __init__(self, step: StepRun) -> None:
        self._step = step

    def on_progress(self, call: StepCall, event: Logged) -> None:
        self._step.show(call.item, phase=event.phase, message=event.message, work=event.work, total=event.total)

    def on_line(self, call: StepCall, event: Logged) -> None:
        self._step.say(event.level, call.item, event.message)

    def on_notice(self, call: StepCall, message: str, phase: str) -> None:
        self._step.show(call.item, phase=phase, message=message)


def _pause_s(failed: int, error: CartdeckError) -> float:
    """Doubled each time; at least what the error asks for."""
    asked: Any = error.details.get("retry_after_s")
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** (failed - 1), _LONGEST_PAUSE_S)
    with contextlib.suppress(TypeError, ValueError):
        pause_s = max(pause_s, min(float(asked), 10 * _LONGEST_PAUSE_S))
    return pause_s
