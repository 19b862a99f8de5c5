"""Owns what a server remembers of its models: whether one is loading, works, or failed to load, and with which error.

It does not know sessions: whether what answered last is still in memory is told to it.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.server.external.failing import is_about_request
from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, from_wire

MOST_REMEMBERED: Final = 1024
_SAYS_NOTHING: Final = frozenset({Code.QUEUE_FULL, Code.TIMED_OUT, Code.ABORTED, Code.CANCELLED, Code.READER_STALLED})
_OF_MODEL: Final = frozenset({"model", "projector", "lora"})


@dataclass(slots=True)
class ModelState:
    """One model: `calls` are open now."""

    calls: int = 0
    has_answered: bool = False
    error: CartdeckError | None = None
    used_s: float = 0.0
    """When a call of it last began or ended, on the monotonic clock; 0 when it was unloaded since, or never used."""

    @property
    def name(self) -> str:
        """unused, loading, ready or failed."""
        if self.error is not None and not self.calls:
            return "failed"
        if self.has_answered:
            return "ready"
        return "loading" if self.calls else "unused"

    def shown(self, *, is_in_memory: bool) -> str:
        """The same, and `unloaded` where what answered last is in memory no more: the next request loads it again."""
        return "unloaded" if self.name == "ready" and not is_in_memory else self.name

    def to_plain(self, *, is_in_memory: bool = True) -> dict[str, Any]:
        plain: dict[str, Any] = {"state": self.shown(is_in_memory=is_in_memory)}
        if self.error is not None:
            plain["error"] = {"code": self.error.code_name, "message": self.error.message}
        return plain


class ModelStates:
    """The states by the models' names; the oldest are forgotten."""

    def __init__(self) -> None:
        self._states: dict[str, ModelState] = {}

    def of(self, name: str) -> ModelState:
        return self._states.get(name) or ModelState()

    def begin(self, name: str) -> ModelState:
        """A call of that model begins; its end is told to the state that this gives."""
        state = self._states.setdefault(name, ModelState())
        if len(self._states) > MOST_REMEMBERED:
            oldest = next((one for one, kept in self._states.items() if not kept.calls), None)
            if oldest is not None:
                del self._states[oldest]
        state.calls += 1
        state.used_s = time.monotonic()
        return state

    def names(self) -> list[str]:
        return list(self._states)


def settle(state: ModelState, error: CartdeckError | None, *, has_output: bool) -> None:
    """A call has ended: well, or with that error."""
    state.calls -= 1
    state.used_s = time.monotonic()
    if error is None or has_output:
        state.has_answered, state.error = True, None
    elif is_about_loading(error):
        state.has_answered, state.error = False, from_wire(error.to_wire())


def is_about_loading(error: CartdeckError) -> bool:
    """Whether the model is at fault, or what it needs; not a request that asked for too much, nor a full queue."""
    if error.code in _SAYS_NOTHING or is_about_request(error):
        return False
    if error.code is Code.UNSUPPORTED and error.argument == "projector":  # it was shown an image, and has no eyes
        return False
    return error.error_class is not ErrorClass.INPUT or error.argument is None or error.argument in _OF_MODEL
