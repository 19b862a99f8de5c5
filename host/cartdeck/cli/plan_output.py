"""Owns the one output of a plan that goes to standard output, written as it comes.

It does not know the plan's steps, nor how the view of them looks.
"""

from typing import Final

import anyio

from cartdeck.cli.output import STANDARD_LINE, StandardOutput, TerminalText
from cartdeck.cli.plan_view import PlanView
from cartdeck.cli.running import in_thread
from cartdeck.plans.events import PlanEvent, StepEnded
from cartdeck.plans.run import PlanRun
from cartdeck_protocol.errors import CartdeckError

_SETTLE_S: Final = 5.0


class PlanOutput:
    """An output of `run` on its way to standard output: a value as it is, items of text or JSON as JSON lines.

    `written` is set at its end; `error` is what kept it from being written, which also cancels the plan.
    """

    def __init__(self, run: PlanRun, name: str, view: PlanView) -> None:
        self._run = run
        self._name = name
        self._view = view
        self._standard = StandardOutput()
        self._text = TerminalText() if self._standard.is_terminal else None
        self._end: StepEnded | None = None
        self._is_told = anyio.Event()
        self.written = anyio.Event()
        self.error: Exception | None = None

    async def write(self) -> None:
        output = self._run.report.output(self._name)
        try:
            async for entry in self._run.follow(self._name):
                await self._put(output.encoded(entry))
            await self._put(b"", is_last=True)
        except Exception as error:
            if not (isinstance(error, CartdeckError) and error is self._run.error):  # that one is told by the plan
                self.error = error
                self._run.cancel("its output cannot be written")
        finally:
            self.written.set()

    def holds_back(self, event: PlanEvent) -> bool:
        """Whether it is the end of the step that this comes of, which `tell_end` tells."""
        if not isinstance(event, StepEnded) or self._run.compiled.values[self._name].producer != event.step:
            return False
        self._end = event
        return True

    async def tell_end(self) -> None:
        """What comes of the step is written before its end is told; not for long, of a slow reader."""
        assert self._end is not None
        with anyio.move_on_after(_SETTLE_S):
            await self.written.wait()
        self._view.take(self._end)
        self._is_told.set()

    async def settle(self) -> None:
        """The end of the step, where it has one, is told before that of the plan."""
        if self._end is not None:
            await self._is_told.wait()

    async def _put(self, data: bytes, *, is_last: bool = False) -> None:
        """On a terminal, text that cannot move its cursor, beside the view of the steps."""
        if self._text is not None:
            data = self._text.feed(data, is_last=is_last)
        STANDARD_LINE.follow(data)
        if self._text is not None and data:
            data = self._view.around(data)
        if data:
            await in_thread(self._standard.write, data)
