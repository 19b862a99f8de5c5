"""Owns one call of a step: an engine's call that tells progress at once, and checks what comes.

It does not know the step, nor what is done with its output.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cartdeck.calls.call import Call
from cartdeck.calls.intake import KEEP_ALL
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

    __slots__ = ("_conformances", "_keeps", "_listener", "fraction", "item", "whole")

    def __init__(
        self,
        engine: Switch,
        cap: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float | None,
        keeps: bool,
        listener: Listener,
        conformances: Mapping[str, Conformance],
        item: tuple[int, ...] = (),
    ) -> None:
        super().__init__(engine, cap, arguments, timeout_s=timeout_s, keep_bytes=KEEP_ALL if keeps else 0)
        self._listener = listener
        self._keeps = keeps
        self._conformances = conformances
        self.item = item
        self.fraction = 0.0
        """The highest progress so far."""
        self.whole: bytes | None = None
        """The main output, of a call that keeps nothing: where it came in one piece, past the queue of events."""

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        declared = self._conformances.get(stream.name)
        if declared is not None and (stream.media != declared.name or stream.is_sequence != declared.is_sequence):
            try:
                declared.check_stream(stream.media, is_sequence=stream.is_sequence)
            except CartdeckError as error:
                self._on_bad_output(error)
                return
            except ValueError as error:
                message = f"the output says that it is {stream.media!r:.60}, which is no media URN: {error}"
                self._on_bad_output(failure(Code.BAD_OUTPUT, message))
                return
        if payload is not None and not (self._keeps or stream.name or stream.is_sequence):
            self.whole = payload
        else:
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


class AdmittedCall(StepCall):
    """A call that also tells when its request goes to its process, once, from `watch` on."""

    __slots__ = ("is_admitted", "on_admitted")
    is_admitted: bool
    on_admitted: Callable[[], None]

    def watch(self, on_admitted: Callable[[], None]) -> None:
        self.is_admitted = False
        self.on_admitted = on_admitted

    def on_opened(self) -> None:
        super().on_opened()
        if not self.is_admitted:  # it may be sent again
            self.is_admitted = True
            self.on_admitted()
