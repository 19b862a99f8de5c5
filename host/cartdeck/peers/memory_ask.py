"""Owns one cartridge's question for memory: the cap `reserve-memory`, which the engine serves itself.

It does not know how much there is; `Memory` answers. Cartridges alone ask, each for its own process: to callers the cap
does not exist.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from cartdeck.pool.policy import SessionKey
from cartdeck.request import Request
from cartdeck.router import parse_cap
from cartdeck.sessions.session import Session
from cartdeck_protocol.caps import CapDefinition, decode_value, load_shared_definition
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import InStream, Logged, RequestReceived

ALIAS: Final = "reserve-memory"


@cache
def definition() -> CapDefinition:
    """The cap's definition, read when the first cartridge asks."""
    return load_shared_definition(ALIAS)


def is_ask(cap: str) -> bool:
    """Whether a cartridge that calls this peer cap asks for memory. Raises BAD_ARGUMENT for what is no cap."""
    if ALIAS not in cap:  # nearly all
        return False
    urn = parse_cap(cap)
    return ALIAS in urn.tags and definition().urn.serves(urn)


def _asked_bytes(event: RequestReceived) -> int:
    """Raises what is wrong with the arguments; streams are none of this cap's."""
    by_name = {definition().argument(name).name: data for name, data in event.arguments.items()}
    size = by_name.get("bytes")
    if size is None or not event.complete:
        raise failure(Code.MISSING_ARGUMENT, f"{ALIAS} needs bytes in the request itself", argument="bytes")
    return int(decode_value(definition().argument("bytes"), size))


class MemoryAsk(Request):
    """A question that is answered at once, or waits. It counts as a peer call of the request it was made for."""

    __slots__ = ("_on_withdrawn", "_wire_exchange", "asker", "is_told", "size_bytes", "timer")

    def __init__(
        self,
        asker: Session,
        event: RequestReceived,
        parent: Request | None,
        *,
        number: int,
        on_withdrawn: Callable[["MemoryAsk"], None],
    ) -> None:
        """`number` tells it from the others. Raises what is wrong with the question."""
        super().__init__(parent)
        self.asker = asker
        if parent is None:
            self.priority = asker.priority
        self.size_bytes = _asked_bytes(event)
        self.key = SessionKey("", f"memory ask {number}")
        self.timer: Any = None
        self._on_withdrawn = on_withdrawn
        self._wire_exchange = event.exchange
        event.exchange.owner = self
        if parent is not None:
            parent.peers.add(self)

    @property
    def title(self) -> str:
        return f"{ALIAS} for {self.asker.key}"

    @property
    def is_wanted(self) -> bool:
        """False once the cartridge has cancelled it, which the engine may only be about to hear, from the same read."""
        return self._wire_exchange.is_open and not self._wire_exchange.cancelled

    def grant(self, record: dict[str, int | None]) -> None:
        """Answer with what was granted."""
        output = definition().outputs[""]
        stream = self.asker.connection.open_stream(self._wire_exchange, name="", media=str(output.media))
        stream.write(json.dumps(record).encode())
        stream.close()
        self.finish(1.0, {})

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        self._stop_timer()
        self.asker.connection.end(self._wire_exchange, progress=progress, provenance=provenance)
        self.asker.flush_soon()

    def on_failed(self, error: CartdeckError) -> None:
        self._stop_timer()
        self.asker.connection.fail(self._wire_exchange, error)
        self.asker.flush_soon()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def on_notice(self, message: str, phase: str) -> None:
        if message != self.noticed and not self.asker.is_blocked:
            self.noticed = message
            self.asker.connection.log(self._wire_exchange, "info", message, progress=0.0, phase=phase)
            self.asker.flush_soon()

    def on_caller_gone(self, error: CartdeckError) -> None:
        """The cartridge cancelled it, or its process is gone."""
        if not self.is_answered:
            self._on_withdrawn(self)
            self.fail(error)

    # -- an ask sends and takes nothing else

    def on_opened(self) -> None:
        raise AssertionError("an ask is never opened at a session")

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        pass

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        pass

    def on_stream_end(self, stream: InStream) -> None:
        pass

    def on_arguments_end(self) -> None:
        pass

    def on_log(self, event: Logged) -> None:
        pass

    def reader_since_s(self, now_s: float) -> float | None:
        return None
