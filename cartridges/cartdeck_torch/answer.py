"""Owns passing on what a job says of its texts: the first to the main output, calls and all else to `events`.

It does not know what makes them.
"""

from typing import Any

from cartdeck_modelkit.dialogue.call_events import write_with_calls
from cartdeck_modelkit.dialogue.tool_stream import CallSplitter
from cartdeck_sdk import Output
from cartdeck_torch.generation import Generation, splitter_for


class AnswerWriter:
    """Writes one generation's answer."""

    def __init__(self, generation: Generation, output: Output) -> None:
        self._generation = generation
        self._output = output
        self._calls: CallSplitter | None = None

    async def write(self, text: str, items: list[dict[str, Any]]) -> None:
        """What came since the last time: more of the first text, and events."""
        if text:
            self._calls = self._calls or splitter_for(self._generation)
            if self._calls is None:
                await self._output.write(text)
            else:
                await write_with_calls(text, self._calls, self._output)
        for item in items:
            await self._output.stream("events").item(item)

    async def finish(self) -> None:
        """What was held back of an answer that may hold calls."""
        if self._calls is not None:
            is_cut = self._generation.finish_reason != "stop"
            await write_with_calls("", self._calls, self._output, is_last=True, is_cut=is_cut)
