"""Owns a step that is one call: its output goes on as it comes, at the pace of whoever reads it.

It does not know mapped steps.
"""

import asyncio
from typing import Any

from cartdeck.events import Data, End
from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.conformance import OutputCheck
from cartdeck.plans.events import StepState
from cartdeck.plans.flow import Flow
from cartdeck.plans.kept import Kept
from cartdeck.plans.source_values import Taken, scalar, sequence, short
from cartdeck.plans.spool import NOTHING
from cartdeck.plans.step_call import StepCall
from cartdeck.plans.step_run import Context, StepRun
from cartdeck_protocol.caps import ArgumentDefinition
from cartdeck_protocol.errors import CartdeckError


class SingleRun(StepRun):
    __slots__ = ("_ahead", "_keeps", "_taken")

    def __init__(
        self, context: Context, compiled: CompiledStep, sources: dict[str, Flow], targets: dict[str, Flow]
    ) -> None:
        super().__init__(context, compiled, sources, targets)
        keeps = self.retry > 0 or self.kept is not None
        self._taken: list[tuple[ArgumentDefinition, list[Taken]]] = []
        for binding in compiled.bindings:
            taken = Taken(binding.argument, sources[binding.source], 0, keeps=keeps)
            if self._taken and self._taken[-1][0] is binding.argument:
                self._taken[-1][1].append(taken)
            else:
                self._taken.append((binding.argument, [taken]))
        self._keeps = keeps
        for output, target in targets.items():
            # What may be missing, come again or be refused at its end is handed over when it has ended.
            is_whole = self.conformances[output].is_whole
            target.is_handed_over = not (self.retry or self.is_absentable or is_whole)
        # Made now, while the cartridge works for the step before, and not when that has ended and this call is waited
        # for. Its arguments are filled in then. Given up as soon as it is used: what it holds is let go with it.
        arguments: dict[str, Any] = {**compiled.step.constants}
        self._ahead = None if keeps else (self.make_call(arguments, (), keeps=False), arguments)

    def finish(self, state: StepState, *, because: str | None = None, error: CartdeckError | None = None) -> None:
        self._ahead = None  # a call that was not needed knows the step, which would be work for the collector
        super().finish(state, because=because, error=error)

    async def run(self) -> None:
        try:
            if self.kept is not None:
                await self._run_kept(self.kept)
            elif self.retry:
                await self.with_tries(self._call)
            else:
                await self._call()
        finally:
            for _, group in self._taken:
                for taken in group:
                    taken.close()
        self.end_targets()

    async def _run_kept(self, kept: Kept) -> None:
        self.context.on_begun(self)
        arguments = await self._arguments()
        readers = {argument.name: [one.reader.fork() for one in group] for argument, group in self._taken}
        try:
            key = await self.key(arguments, readers)
        finally:
            for group in readers.values():
                for reader in group:
                    reader.close()
        if kept.restore(key, self.targets, self.report):
            self.is_reused = True
            self.report.reused = 1
            return
        saved = {output: target.reader(keeps=True) for output, target in self.targets.items()}
        try:
            await self.with_tries(self._call)
            kept.save(key, self.compiled, saved, self.report)
        finally:
            for reader in saved.values():
                reader.close()

    async def _arguments(self) -> dict[str, Any]:
        if self._keeps:
            for _, group in self._taken:
                for taken in group:
                    taken.reader.rewind()
        arguments: dict[str, Any] = {**self.compiled.step.constants}
        await self._take_sources(arguments)
        return arguments

    async def _take_sources(self, arguments: dict[str, Any]) -> None:
        for argument, group in self._taken:
            if argument.is_sequence:
                arguments[argument.name] = await sequence(argument, group)
            elif (value := short(group[0])) is not NOTHING:
                arguments[argument.name] = value
            else:
                arguments[argument.name] = await scalar(group[0])

    async def _call(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            arguments = await self._arguments()
            call = self.make_call(arguments, (), keeps=False)
        else:
            call, arguments = ahead
            await self._take_sources(arguments)
        slots = self.context.slots
        if not slots.take_now(self.cartridge, self.capacity):
            self.show((), phase="queued", message="waits for a place")
            await slots.take(self.cartridge, self.capacity)
        self.report.tries += 1
        try:
            call.begin()
            self._while_it_works()
            await self._read(call, arguments)
        except BaseException:
            await call.settle()
            for target in self.targets.values():
                if not target.is_handed_over:
                    target.drop()
            self.tally.advance(-call.fraction)
            raise
        finally:
            slots.give(self.cartridge)
        self.tally.done += 1  # the step's end, which follows at once, makes its progress whole

    def _while_it_works(self) -> None:
        """The call is with its cartridge: what is done now costs no time."""
        self.context.on_begun(self)
        if not self._keeps:
            for _, group in self._taken:
                for taken in group:
                    if taken.flow.is_ended and taken.reader.position == taken.flow.spool.count:
                        taken.close()

    async def _read(self, call: StepCall, arguments: dict[str, Any]) -> None:
        targets, checks = self.targets, self._checks(arguments)
        handed_over = [target for target in targets.values() if target.is_handed_over]
        while not isinstance(end := (batch := await call.next_events())[0], End):
            for event in batch:
                if type(event) is Data:
                    self._take(event.output, event.value, checks)
            if not handed_over:
                continue
            if not call.is_answered:  # else it is whole in a moment, and told as such
                for target in handed_over:
                    if target.spool.count:
                        target.begin()
            await self._room(handed_over)
        if call.whole is not None:
            self._take("", call.whole, checks)
        for check in checks.values():
            check.finish()
        self.report.provenance = end.provenance

    def _take(self, output: str, value: Any, checks: dict[str, OutputCheck]) -> None:
        check, target = checks.get(output), self.targets.get(output)
        if check is not None:
            check.feed(value)
        if target is not None:
            target.put(value)

    async def _room(self, targets: list[Flow]) -> None:
        """Wait where every output that somebody reads is far ahead: one that is read must not wait for another, whose
        reader may be the same step. What is not read yet goes to the file."""
        spools = [target.spool for target in targets if target.spool.is_read]
        if not spools or not all(spool.is_full for spool in spools):
            return
        if len(spools) == 1:
            await spools[0].room(self.longest_hold_s)
            return
        waits = [asyncio.ensure_future(spool.room(self.longest_hold_s)) for spool in spools]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)

    def _checks(self, arguments: dict[str, Any]) -> dict[str, OutputCheck]:
        """What looks at the outputs as they come; none where any bytes are right."""
        definition = self.compiled.definition
        mirrored = None
        if definition.urn.effect == "none" and definition.main_argument is not None:
            mirrored = arguments.get(definition.main_argument.name)
        checks: dict[str, OutputCheck] = {}
        for output, conformance in self.conformances.items():
            given = None if output else mirrored
            if not conformance.is_free or given is not None:
                checks[output] = OutputCheck(conformance, definition.alias, given)
        return checks
