"""Owns the short way of a lone text: each piece goes from the owner's thread into the pipe, past the event loop.

It does not know how the text is made. Where several texts are computed side by side the loop sends their pieces, many
in one write.
"""

from collections.abc import Callable
from typing import Final

from cartdeck_gguf.generation import Generation, LogLine, Piece
from cartdeck_modelkit.phases import STEP
from cartdeck_sdk import Output
from cartdeck_sdk.shortcut import Shortcut

_REPORTS: Final = round(1 / STEP)


class ShortWay:
    """For one text without records, which the main output is made of. `open` and `close` on the loop's thread."""

    def __init__(self, generation: Generation, output: Output, *, is_alone: Callable[[], bool]) -> None:
        """`is_alone()` says whether no other text is computed."""
        self._generation = generation
        self._output = output
        self._is_alone = is_alone
        self._is_of_use = generation.settings.texts == 1 and not generation.settings.logprobs
        self._shortcut: Shortcut | None = None
        self._next_report = 0

    def open(self) -> None:
        """Takes the short way from now on, as far as it leads: once all that came was written to the output."""
        if not self._is_of_use or not self._is_alone():
            return
        if self._shortcut is None:
            self._shortcut = self._output.stream("").shortcut()
        if self._shortcut.open():
            self._generation.delivery.go_past(self._send)

    def close(self) -> None:
        """Leaves it: what follows waits for the loop."""
        self._generation.delivery.stay()
        if self._shortcut is not None:
            self._shortcut.close()

    def _send(self, item: Piece | LogLine) -> bool:
        """On the owner's thread: whether the piece is on its way."""
        if type(item) is not Piece or item.finish_reason is not None or self._shortcut is None or not self._is_alone():
            return False
        if not self._shortcut.write(item.text.encode()):
            return False
        generation = self._generation
        if generation.completion_tokens >= self._next_report:
            self._next_report = generation.completion_tokens + max(1, generation.most_tokens // _REPORTS)
            generation.delivery.touch()
        return True
