"""Owns one call of a step: an engine's call that tells progress at once, and checks what comes.

It does not know the step, nor what is done with its output.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cartdeck.call import Call
from cartdeck.intake import KEEP_ALL
from cartdeck.plans.conformance import Conformance
from cartdeck.switch import Switch
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import InStream, Logged


class Listener(Protocol):
    """Who is told of a call as it goes."""

    def on_progress(self, call: "StepCall", event: Logged) -> None: ...

    def on_line(self, call: "StepCall", event: Logged) -> None: ...

    def on_notice(self, call: "StepCall", message: str, phase: str) -> None: ...


class StepCall(Call):
    """A call whose progress goes to a listener as it comes, past the queue of its events."""

    __slots__ = ("_conformance", "_listener", "fraction", "item", "on_admitted")

    def __init__(
        self,
        engine: Switch,
        cap: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float | None,
        keeps: bool,
        listener: Listener,
        conformance: Conformance | None,
        item: tuple[int, ...] = (),
    ) -> None:
        super().__init__(engine, cap, arguments, timeout_s=timeout_s, keep_bytes=KEEP_ALL if keeps else 0)
        self._listener = listener
        self._conformance = conformance
        self.item = item
        self.fraction = 0.0
        """The highest progress so far."""
        self.on_admitted: Callable[[], None] | None = None
        """Told when the request goes to its process."""

    def on_opened(self) -> None:
        super().on_opened()
        if self.on_admitted is not None:
            self.on_admitted()

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        if not stream.name and self._conformance is not None:
            try:
                self._conformance.check_stream(stream.media, is_sequence=stream.is_sequence)
            except CartdeckError as error:
                self._on_bad_output(error)
                return
            except ValueError as error:
                message = f"the output says that it is {stream.media!r:.60}, which is no media URN: {error}"
                self._on_bad_output(failure(Code.BAD_OUTPUT, message))
                return
        super().on_stream(stream, payload)

    def on_log(self, event: Logged) -> None:
        if event.progress is not None or event.work is not None or event.phase is not None:
            self._listener.on_progress(self, event)
        else:
            self._listener.on_line(self, event)

    def on_notice(self, message: str, phase: str) -> None:
        self._listener.on_notice(self, message, phase)

    async def settle(self) -> None:
        """Cancel it if it runs, and wait until the engine has answered."""
        self.cancel("the plan left the call")
        while not self.is_answered:
            await self._wait()
