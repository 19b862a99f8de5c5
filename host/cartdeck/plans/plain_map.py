"""Owns a mapped step whose items are whole values, each called once: one task drives all of its calls.

It does not know calls that are tried again, kept or mapped deeper: of those each has a task, in `mapped_run`. A task, a
future and two turns of the loop for each item were a third of what a short call costs.
"""

import asyncio
from collections import deque
from typing import Any

from cartdeck.plans.compiling import CompiledStep
from cartdeck.plans.convert import Absent, as_value
from cartdeck.plans.flow import Flow
from cartdeck.plans.item_call import ItemCall
from cartdeck.plans.mapped_run import AHEAD, MappedRun
from cartdeck.plans.step_run import Context
from cartdeck_protocol.errors import CartdeckError


def is_plain(context: Context, compiled: CompiledStep) -> bool:
    """Whether a `PlainMap` can run the step."""
    return (
        compiled.loops == 1
        and not compiled.step.settings.retry
        and context.kept is None
        and all(one.loops and not one.argument.is_sequence for one in compiled.bindings)
    )


class PlainMap(MappedRun):
    __slots__ = ("_ended", "_is_at_end", "_open", "_place", "_room", "_row", "_waiter")

    def __init__(
        self, context: Context, compiled: CompiledStep, sources: dict[str, Flow], targets: dict[str, Flow]
    ) -> None:
        super().__init__(context, compiled, sources, targets)
        self._open: set[ItemCall] = set()
        self._ended: deque[ItemCall] = deque()
        """Calls that have ended, in the order in which they did, and were not looked at yet."""
        self._row: list[Any] = []
        """The next item, where there is no place for its call yet; [] for none."""
        self._place: asyncio.Future[None] | None = None
        """The place that was asked for."""
        self._room: asyncio.Task[None] | None = None
        """Waits for a reader that is far behind."""
        self._is_at_end = False
        self._waiter: asyncio.Future[None] | None = None

    async def work_all(self) -> None:
        try:
            while True:
                self._look_at_ended()
                self._start_calls()
                if self._ended:
                    continue
                if self._is_at_end and not self._open and not self._row:
                    return
                await self._wait()
        finally:
            await self._leave()

    # -- calls begin

    def _start_calls(self) -> None:
        items = self.items
        if self._place is not None:
            if not self._place.done():
                return
            self._place = None
            self._start()
        while len(self._open) < self.at_once and self._room is None:
            if items.taken - self.delivered >= AHEAD * self.at_once:
                return
            if not self._row and not self._take_row():
                return
            slots = self.context.slots
            if not slots.take_now(self.cartridge, self.capacity):
                self._place = slots.ask(self.cartridge, self.capacity)
                self._place.add_done_callback(lambda _: self._wake())
                return
            self._start()

    def _take_row(self) -> bool:
        """Whether there is an item to call for, in `_row`."""
        items = self.items
        if self._is_at_end:
            return False
        while row := items.take_now():
            for one in row:
                if type(one) is Absent:
                    index = items.taken - 1
                    self.deliver(index, self.pass_on((index,), one))
                    break
            else:
                self._row = row
                return True
        self._is_at_end = row is not None
        self.count_items()
        return False

    def _start(self) -> None:
        """Begin the call of the row, in a place that is taken."""
        row, self._row = self._row, []
        arguments: dict[str, Any] = {**self.compiled.step.constants}
        for taken, entry in zip(self.items.sources, row, strict=True):
            argument = taken.argument
            arguments[argument.name] = entry if type(entry) is bytes else as_value(entry, argument)
        self.report.tries += 1
        call = self.make_call(arguments, (self.items.taken - 1,), keeps=True, kind=ItemCall)
        if self.tally.count is None:
            self.count_items()
        self._open.add(call)
        call.start(arguments, self._on_ended, None if self.items.is_complete else self.on_admitted)

    # -- calls end

    def _on_ended(self, call: ItemCall) -> None:
        self._open.remove(call)
        self.context.slots.give(self.cartridge)
        if call.is_admitted:
            self.on_left()
        if call.fraction:
            self.tally.advance(-call.fraction)
        self._ended.append(call)
        self._wake()

    def _look_at_ended(self) -> None:
        """Hand over what calls gave. Raises the error of one that the step cannot go on without."""
        ended = self._ended
        if not ended:
            return
        item = ended[-1].item
        while ended:
            call = ended.popleft()
            try:
                result = call.result
                entry = self.output.entry_of(result, call.arguments)
                self.report.provenance = result.provenance
            except CartdeckError as error:
                entry = self.lost(call.item, error)
            self.tally.item_ended(1.0)
            self.deliver(call.item[0], entry)
        if self.context.telling.is_wanted:
            self.show(item)
        self._look_for_room()

    def _look_for_room(self) -> None:
        """Where a reader is far behind, begin no more calls for a while."""
        if self._room is not None:
            return
        for target in self.targets.values():
            if target.spool.is_full:
                self._room = asyncio.get_running_loop().create_task(target.spool.room(self.longest_hold_s))
                self._room.add_done_callback(self._on_room)
                return

    def _on_room(self, room: "asyncio.Task[None]") -> None:
        if self._room is room:
            self._room = None
            self._wake()

    # -- waiting

    async def _wait(self) -> None:
        """Until a call has ended, or another may begin."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        if not self._is_at_end and not self._row:
            self.items.watch(waiter)
        await waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _leave(self) -> None:
        """Nothing of it is left: calls that run are cancelled."""
        if self._place is not None:
            place, self._place = self._place, None
            self.context.slots.withdraw(self.cartridge, place)
        calls = [*self._open]
        for call in calls:
            call.cancel("the plan left the call")
        for call in calls:
            await call.settle()
        if self._room is not None:
            room, self._room = self._room, None
            room.cancel()
            await asyncio.wait([room])
