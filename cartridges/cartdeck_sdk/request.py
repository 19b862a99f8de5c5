"""Owns what a handler sees of one call: typed arguments, streams, whether it was cancelled.

It does not know frames; the service feeds it.
"""

import traceback
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from cartdeck_protocol.caps import ArgumentDefinition, CapDefinition, decode_value
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Exchange
from cartdeck_sdk.received_stream import ReceivedStream

if TYPE_CHECKING:
    from cartdeck_sdk.peer import Peer


class Request:
    """One call. `request["name"]` is the typed value of an argument, its default where the caller gave none."""

    __slots__ = (
        "_definition", "_exchange", "_on_cancel", "_streams", "_values", "cancel_reason", "given", "peer",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, definition: CapDefinition, peer: "Peer") -> None:
        self._exchange = exchange
        self._definition = definition
        self._values: dict[str, Any] = {}
        self.given: set[str] = set()
        """The arguments that the caller gave itself."""
        self._streams: dict[str, ReceivedStream] = {}
        self._on_cancel: list[Callable[[], object]] = []
        self.cancel_reason: str | None = None
        self.peer = peer

    @property
    def id(self) -> int:
        return self._exchange.id

    @property
    def alias(self) -> str:
        return self._definition.alias

    @property
    def definition(self) -> CapDefinition:
        return self._definition

    def __getitem__(self, name: str) -> Any:
        """The value; None for an argument that is optional, has no default and was not given.

        HANDLER_FAILED for a name that the cap does not define, and for an argument that comes as a stream: a mistake of
        the handler, not of its caller.
        """
        argument = self._argument(name)
        if argument.name in self._values:
            return self._values[argument.name]
        if argument.is_stream or argument.is_sequence:
            raise failure(
                Code.HANDLER_FAILED,
                f"the handler of {self.alias} reads the argument {name} as one value, which is defined with is_stream "
                f"or is_sequence; iterate over request.stream({name!r})",
            )
        default: Any = argument.default
        return deepcopy(default)  # a list or a record is the handler's own, to change

    def is_given(self, name: str) -> bool:
        """Whether the caller gave the argument itself."""
        return name in self.given

    def stream(self, name: str) -> ReceivedStream:
        """The chunks (or items) of a streamed argument, as they come. Empty when the caller gave none."""
        argument = self._argument(name)
        if argument.name not in self._streams:
            raise failure(
                Code.HANDLER_FAILED,
                f"the handler of {self.alias} streams the argument {name}, which is defined without is_stream or "
                f"is_sequence; read it as request[{name!r}]",
            )
        return self._streams[argument.name]

    def _argument(self, name: str) -> ArgumentDefinition:
        found = self._definition.arguments.get(name)
        if found is not None:
            return found
        try:
            return self._definition.argument(name)
        except CartdeckError as error:
            message = f"the handler of {self.alias} reads an argument that its cap lacks: {error.message}"
            raise failure(Code.HANDLER_FAILED, message) from None

    @property
    def is_cancelled(self) -> bool:
        return self.cancel_reason is not None

    def raise_if_cancelled(self) -> None:
        """CANCELLED once the caller gave up: call it between steps of long work."""
        if self.cancel_reason is not None:
            raise failure(Code.CANCELLED, self.cancel_reason)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Run `callback` on the loop's thread as soon as the caller gives up; at once if it has already."""
        if self.is_cancelled:
            callback()
        else:
            self._on_cancel.append(callback)

    # what the service does

    def set_value(self, argument: ArgumentDefinition, data: bytes) -> None:
        """Decode one collected argument; BAD_ARGUMENT says what was found and what was wanted."""
        self._values[argument.name] = decode_value(argument, data)
        self.given.add(argument.name)

    def set_stream(self, argument: ArgumentDefinition, stream: ReceivedStream, *, is_given: bool) -> None:
        self._streams[argument.name] = stream
        if is_given:
            self.given.add(argument.name)

    def end_streams(self, error: CartdeckError) -> None:
        """Whoever reads an argument, also one that has not begun to come, gets `error`."""
        for stream in self._streams.values():
            stream.end(error)

    def cancel(self, reason: str) -> None:
        self.cancel_reason = reason
        callbacks, self._on_cancel = self._on_cancel, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the author's mistake: the cancel goes on, and so does the process's other work
                traceback.print_exc()
