"""Owns a step that is one call: its output goes on as it comes, at the pace of whoever reads it.

It does not know mapped steps.
"""

from typing import Any

from cartdeck.events import Data, End
from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.conformance import OutputCheck
from cartdeck.plans.flow import Flow
from cartdeck.plans.source_values import Taken, scalar, sequence, short
from cartdeck.plans.spool import NOTHING
from cartdeck.plans.step_call import StepCall
from cartdeck.plans.step_run import Context, StepRun
from cartdeck_protocol.caps import ArgumentDefinition


class SingleRun(StepRun):
    __slots__ = ("_keeps", "_taken")

    def __init__(self, context: Context, compiled: CompiledStep, sources: dict[str, Flow], target: Flow | None) -> None:
        super().__init__(context, compiled, sources, target)
        keeps = self.retry > 0 or context.kept is not None
        self._taken: list[tuple[ArgumentDefinition, list[Taken]]] = []
        for binding in compiled.bindings:
            taken = Taken(binding.argument, sources[binding.source], 0, keeps=keeps)
            if self._taken and self._taken[-1][0] is binding.argument:
                self._taken[-1][1].append(taken)
            else:
                self._taken.append((binding.argument, [taken]))
        self._keeps = keeps
        if target is not None:
            is_whole = self.conformance is not None and self.conformance.is_whole
            # What may be missing, come again or be refused at its end is handed over when it has ended.
            target.is_handed_over = not (self.retry or self.is_absentable or is_whole)

    async def run(self) -> None:
        try:
            if self.context.kept is not None:
                await self._run_kept()
            elif self.retry:
                await self.with_tries(self._call)
            else:
                await self._call()
        finally:
            for _, group in self._taken:
                for taken in group:
                    taken.close()
        self.end_target()

    async def _run_kept(self) -> None:
        kept = self.context.kept
        assert kept is not None
        arguments = await self._arguments()
        readers = {argument.name: [one.reader.fork() for one in group] for argument, group in self._taken}
        try:
            key = await kept.key(self.compiled.route, arguments, readers)
        finally:
            for group in readers.values():
                for reader in group:
                    reader.close()
        if kept.restore(key, self.target, self.report):
            self.is_reused = True
            self.report.reused = 1
            return
        saved = None if self.target is None else self.target.reader(keeps=True)
        await self.with_tries(self._call)
        kept.save(key, self.compiled, saved, self.report)
        if saved is not None:
            saved.close()

    async def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {**self.compiled.step.constants}
        for argument, group in self._taken:
            if self._keeps:
                for taken in group:
                    taken.reader.rewind()
            if argument.is_sequence:
                arguments[argument.name] = await sequence(argument, group)
                continue
            value = short(group[0])
            arguments[argument.name] = await scalar(group[0]) if value is NOTHING else value
        return arguments

    async def _call(self) -> None:
        arguments = await self._arguments()
        slots, target = self.context.slots, self.target
        if not slots.take_now(self.cartridge, self.capacity):
            self.show((), phase="queued", message="waits for a place")
            await slots.take(self.cartridge, self.capacity)
        call = self.make_call(arguments, (), keeps=False)
        try:
            call.begin()
            await self._read(call, arguments)
        except BaseException:
            await call.settle()
            if target is not None and not target.is_handed_over:
                target.drop()
            self.tally.advance(-call.fraction)
            raise
        finally:
            slots.give(self.cartridge)
        self.tally.item_ended(1.0 - call.fraction)

    async def _read(self, call: StepCall, arguments: dict[str, Any]) -> None:
        target, check = self.target, self._check(arguments)
        while type((batch := await call.next_events())[0]) is not End:
            for event in batch:
                if type(event) is Data and not event.output:
                    if check is not None:
                        check.feed(event.value)
                    if target is not None:
                        target.put(event.value)
            if target is None or not target.is_handed_over:
                continue
            if not call.is_answered and target.spool.count:  # else it is whole in a moment, and told as such
                target.begin()
            if target.spool.is_full:
                await target.spool.room(self.longest_hold_s)
        if call.whole is not None:
            if check is not None:
                check.feed(call.whole)
            if target is not None:
                target.put(call.whole)
        if check is not None:
            check.finish()
        self.report.provenance = call.result.provenance

    def _check(self, arguments: dict[str, Any]) -> OutputCheck | None:
        """What looks at the output as it comes; None where any bytes are right."""
        conformance, definition = self.conformance, self.compiled.definition
        mirrored = None
        if definition.urn.effect == "none" and definition.main_argument is not None:
            mirrored = arguments.get(definition.main_argument.name)
        if conformance is None or (conformance.is_free and mirrored is None):
            return None
        return OutputCheck(conformance, definition.alias, mirrored)
