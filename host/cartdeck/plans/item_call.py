"""Owns one call for one item, without a task of its own: it says when it has ended, and nobody waits for it.

It does not know the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cartdeck.plans.step_call import StepCall
from cartdeck_protocol.errors import CartdeckError


class ItemCall(StepCall):
    """Its result, kept whole, is there when `on_ended` is called."""

    __slots__ = ("_on_admitted", "_on_ended", "arguments", "is_admitted")
    arguments: Mapping[str, Any]
    _on_admitted: Callable[[], None] | None
    _on_ended: "Callable[[ItemCall], None]"

    def start(
        self,
        arguments: Mapping[str, Any],
        on_ended: "Callable[[ItemCall], None]",
        on_admitted: Callable[[], None] | None,
    ) -> None:
        """Begin it; `arguments` are those that it was made with. What is wrong with them ends it, as any error does.
        `on_admitted` is called once, when its request goes to its process."""
        self.arguments = arguments
        self.is_admitted = False
        self._on_ended = on_ended
        self._on_admitted = on_admitted
        self._is_collecting = True
        try:
            self.begin()
        except CartdeckError as error:
            self._give_up(error, is_answer=True)

    def on_opened(self) -> None:
        super().on_opened()
        if self._on_admitted is not None and not self.is_admitted:  # it may be sent again
            self.is_admitted = True
            self._on_admitted()

    def _close(self) -> None:
        super()._close()
        self._on_ended(self)
