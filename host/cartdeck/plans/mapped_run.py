"""Owns a step that is called once for each item of a sequence, several at once; its results keep their order.

It does not know steps that are one call.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast

from cartdeck.plans.call_output import CallOutput, part_of
from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.convert import Absent, as_item, as_value
from cartdeck.plans.flow import Flow
from cartdeck.plans.item_source import ItemSource
from cartdeck.plans.kept import Kept
from cartdeck.plans.source_values import Taken, scalar, sequence
from cartdeck.plans.step_call import AdmittedCall, StepCall
from cartdeck.plans.step_run import Context, Missing, StepRun
from cartdeck_protocol.caps import ArgumentDefinition
from cartdeck_protocol.errors import CartdeckError

AHEAD: Final = 4
"""So many times the calls at once may be done and wait for an earlier one."""

Inputs = list[tuple[Taken, int, Any]]
"""For one item: each source, how many more times it is taken apart, and its value, or _SHARED."""

_SHARED: Final = object()
"""What stands for a value that all items share: it is read anew for each."""


class MappedRun(StepRun):
    __slots__ = (
        "_failed", "_is_moving", "_is_over", "_open_calls", "_results", "_taken", "_workers", "at_once", "delivered",
        "items", "output",
    )  # fmt: skip

    def __init__(
        self, context: Context, compiled: CompiledStep, sources: dict[str, Flow], targets: dict[str, Flow]
    ) -> None:
        super().__init__(context, compiled, sources, targets)
        self.output = CallOutput(compiled.definition, self.conformances, targets)
        self._taken = [
            Taken(one.argument, sources[one.source], one.loops, keeps=one.loops == 0) for one in compiled.bindings
        ]
        self.items = ItemSource(self.name, [one for one in self._taken if one.loops])
        asked = compiled.step.settings.at_once or context.at_once
        self.at_once = min(asked, self.capacity, context.at_once)
        self._results: dict[int, Any] = {}
        self.delivered = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._is_moving = asyncio.Event()
        self._is_over = asyncio.Event()
        self._open_calls = 0

    async def run(self) -> None:
        self.context.on_begun(self)
        try:
            await self._prepare()
            await self.work_all()
            if self._failed is not None:
                raise self._failed
        finally:
            for taken in self._taken:
                taken.close()
        self.report.items = self.items.taken
        self.is_reused = bool(self.report.reused) and self.report.tries == 0
        self.end_targets()

    async def _prepare(self) -> None:
        """What all items share must be there before the first."""
        for taken in self._taken:
            if taken.flow.absent is not None:
                raise Missing(taken.flow.absent)
            while not taken.loops and not taken.flow.is_ended:
                await taken.reader.wait()

    # -- workers

    async def work_all(self) -> None:
        self._start_worker()
        try:
            await self._is_over.wait()
        finally:
            workers = [*self._workers]
            for worker in workers:
                worker.cancel()
            if workers:
                await asyncio.wait(workers)

    def _start_worker(self) -> None:
        worker = self.context.engine.start_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._on_worker_done)

    def _on_worker_done(self, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        if not self._workers or self._failed is not None:
            self._is_over.set()

    async def _work(self) -> None:
        """Take items as long as there are some. Where there may be more than the workers can do, start another."""
        items = self.items
        try:
            while self._failed is None:
                while items.taken - self.delivered >= AHEAD * self.at_once:
                    self._is_moving.clear()
                    await self._is_moving.wait()
                if (row := items.take_now()) is None:
                    row = await items.take()
                if not row:
                    self.count_items()
                    return
                index = items.taken - 1
                if len(self._workers) < self.at_once and items.may_have_more:
                    self._start_worker()
                if self.tally.count is None:
                    self.count_items()
                result = await self._item((index,), row)
                self.deliver(index, result)
                for target in self.targets.values():
                    if target.spool.is_full:
                        await target.spool.room(self.longest_hold_s)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failed = self._failed or error
            self._is_moving.set()

    def count_items(self) -> None:
        count = self.items.count
        if count is not None and self.tally.count is None:
            self.tally.set_count(count)

    def deliver(self, index: int, result: Any) -> None:
        """Results leave in the order of their items."""
        if index != self.delivered:
            self._results[index] = result
            return
        self._hand_over(result)
        waiting = self._results
        while waiting and self.delivered in waiting:
            self._hand_over(waiting.pop(self.delivered))
        for target in self.targets.values():
            if not target.has_begun:
                target.begin()
        if not self._is_moving.is_set():
            self._is_moving.set()

    def _hand_over(self, result: Any) -> None:
        self.delivered += 1
        targets = self.targets.values()
        if len(targets) == 1:
            for target in targets:
                target.put(result)
            return
        for number, target in enumerate(targets):
            target.put(part_of(result, number))

    # -- one item

    async def _item(self, item: tuple[int, ...], row: list[Any]) -> Any:
        """The result of one item of the outermost sequence: an entry, or a list where the step is mapped deeper."""
        by_source = dict(zip(self.items.sources, row, strict=True))
        inputs: Inputs = [(one, max(0, one.loops - 1), by_source.get(one, _SHARED)) for one in self._taken]
        return await self._nested(item, inputs)

    def pass_on(self, item: tuple[int, ...], absent: Absent) -> Absent:
        """An item that is absent is absent behind this step too."""
        self.tally.item_ended(1.0)
        return Absent(absent.step, absent.item or item, absent.error)

    async def _nested(self, item: tuple[int, ...], inputs: Inputs) -> Any:
        absent = next((value for _, _, value in inputs if isinstance(value, Absent)), None)
        if absent is not None and not all(one.argument.is_sequence for one, _, value in inputs if value is absent):
            return self.pass_on(item, absent) if len(item) == 1 else absent
        deeper = [(taken, cast("list[Any]", value)) for taken, loops, value in inputs if loops]
        if not deeper:
            return await self._call(item, await self._arguments(inputs), is_whole_item=len(item) == 1)
        lengths = {taken.flow.name: len(value) for taken, value in deeper}
        if len(set(lengths.values())) > 1:
            raise self.items.unequal(lengths)
        count = next(iter(lengths.values()))
        rows: list[Inputs] = [
            [(taken, max(0, loops - 1), value[number] if loops else value) for taken, loops, value in inputs]
            for number in range(count)
        ]
        found = await self._together([self._nested((*item, number), row) for number, row in enumerate(rows)])
        if len(item) == 1:
            self.tally.item_ended(1.0)
            self.show(item)
        return found

    async def _together(self, work: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        """All of the work at once, a failure ending the rest; the places bound how many calls that is."""
        results: list[Any] = [None] * len(work)

        async def one(number: int, job: Coroutine[Any, Any, Any]) -> None:
            results[number] = await job

        tasks = [asyncio.get_running_loop().create_task(one(number, job)) for number, job in enumerate(work)]
        if not tasks:
            return []
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise error
        return results

    async def _arguments(self, inputs: Inputs) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(self.compiled.step.constants)
        gathered: dict[str, tuple[ArgumentDefinition, list[tuple[Taken, Any]]]] = {}
        for taken, _, value in inputs:
            argument = taken.argument
            if argument.is_sequence:
                gathered.setdefault(argument.name, (argument, []))[1].append((taken, value))
            elif value is _SHARED:
                arguments[argument.name] = await scalar(taken, is_forked=True)
            else:
                arguments[argument.name] = as_value(value, argument)
        for argument, parts in gathered.values():
            items: list[Any] = []
            for taken, value in parts:
                if value is _SHARED:
                    shared = await sequence(argument, [taken], is_forked=True)
                    items += shared if isinstance(shared, list) else [one async for one in shared]
                else:
                    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
                    items += [as_item(one, argument) for one in entries if not isinstance(one, Absent)]
            arguments[argument.name] = items
        return arguments

    async def _call(self, item: tuple[int, ...], arguments: dict[str, Any], *, is_whole_item: bool = True) -> Any:
        kept = self.kept
        try:
            if kept is None:
                entry = await self._tried(item, arguments)
            else:
                entry = await self._kept_or_tried(kept, item, arguments)
        except CartdeckError as error:
            entry = self.lost(item, error)
        if is_whole_item:
            self.tally.item_ended(1.0)
            self.show(item)
        return entry

    async def _kept_or_tried(self, kept: Kept, item: tuple[int, ...], arguments: dict[str, Any]) -> Any:
        key = await self.key(arguments, {})
        found = kept.find(key, self.output.names, self.report)
        if found is not None:
            self.report.reused += 1
            return self.output.joined(found)
        entry = await self._tried(item, arguments)
        kept.keep(key, self.compiled, self.output.split(entry), self.report.provenance)
        return entry

    async def _tried(self, item: tuple[int, ...], arguments: dict[str, Any]) -> Any:
        if not self.retry:
            return await self._once(item, arguments)
        return await self.with_tries(lambda: self._once(item, arguments))

    def lost(self, item: tuple[int, ...], error: CartdeckError) -> Absent:
        """What stands for an item that failed. Raises the error where the step cannot go on without it."""
        if not self.is_absentable or self.stopped_by is not None:
            error.details.setdefault("item", list(item))
            raise error
        return self.lose(item, error)

    async def _once(self, item: tuple[int, ...], arguments: dict[str, Any]) -> Any:
        slots = self.context.slots
        if not slots.take_now(self.cartridge, self.capacity):
            await slots.take(self.cartridge, self.capacity)
        kind = StepCall if self.items.is_complete else AdmittedCall
        self.report.tries += 1
        call = self.make_call(arguments, item, keeps=True, kind=kind)
        if isinstance(call, AdmittedCall):
            call.watch(self.on_admitted)
        try:
            call.begin()
            result = await call.collect()
            entry = self.output.entry_of(result, arguments)
        except BaseException:
            await call.settle()
            raise
        finally:
            slots.give(self.cartridge)
            if isinstance(call, AdmittedCall) and call.is_admitted:
                self.on_left()
            if call.fraction:
                self.tally.advance(-call.fraction)
        self.report.provenance = result.provenance
        return entry

    # -- the pace of whoever gives the items

    def on_admitted(self) -> None:
        self._open_calls += 1
        self.items.run()

    def on_left(self) -> None:
        self._open_calls -= 1
        if not self._open_calls:
            self.items.stand()
