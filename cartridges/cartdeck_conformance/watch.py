"""Owns the laws that hold in every conversation, whatever is checked: each breach goes to the check it belongs to.

It does not know why the conversation is held.
"""

import itertools
import re
import time
from collections.abc import Callable
from typing import Any, Final

from cartdeck_conformance import catalogue
from cartdeck_conformance.call import Call
from cartdeck_conformance.catalogue import Check
from cartdeck_conformance.tap import Frame, Tap
from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_protocol.wire import Connection, ConnectionDamaged, Event, ExchangeDamaged, Failed, Kind, StrayReceived

Tell = Callable[[Check, str], None]
LEVELS: Final = frozenset({"debug", "info", "warning", "error", "progress"})
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_CONTROLS: Final = frozenset({*range(0x20), 0x7F}) - {*b"\t\n\r\x1b"}
_SHORTEST_TEXT: Final = 8  # bytes
_SHOWN: Final = 80
_OPEN_STREAMS: Final = "streams of its own still open"
_SLACK: Final = 1e-9


class Watch:
    """What one conversation has shown so far. `tell(check, message)` is called for each breach."""

    def __init__(self, connection: Connection, tap: Tap, tell: Tell) -> None:
        self._connection = connection
        self._tap = tap
        self._tell = tell
        self._progress: dict[int, float] = {}
        self._work: dict[int, tuple[str | None, float]] = {}
        self._stragglers = 0
        self._bad_progress = 0
        self.is_deaf = False
        """Tell nothing: the kit itself breaks laws now, and the connection does not know of it."""
        self._odd_terminals: set[int] = set()
        """Requests that ended with an END, or with an ERR that lacks what it must have: a breach, if the connection
        calls it a failure."""
        self.granted: dict[int, int] = {}
        """Request → CREDIT that came for its arguments."""
        self.answered: set[int] = set()
        """Requests that a frame came for."""
        self.beats: list[dict[str, Any]] = []
        self.beat_times_s: list[float] = []

    def on_frame(self, frame: Frame) -> None:
        """A frame as it came, before the connection deals with it."""
        self.answered.add(frame.request_id)
        if frame.kind == Kind.CREDIT:
            self.granted[frame.request_id] = self.granted.get(frame.request_id, 0) + frame.fields[19]
        elif frame.kind == Kind.LOG:
            self._on_log(frame)
        elif frame.kind == Kind.ERR:
            self._on_err(frame)
        elif frame.kind == Kind.END:
            self._on_end(frame)
        elif frame.kind == Kind.HEARTBEAT:
            self.beats.append(frame.meta)
            self.beat_times_s.append(time.monotonic())

    def on_event(self, event: Event) -> bool:
        """Whether the event is a breach: then it was told."""
        if self.is_deaf:
            return False
        if isinstance(event, ConnectionDamaged):
            self._on_connection_damaged(event.error)
        elif isinstance(event, ExchangeDamaged):
            self._on_damaged(event.exchange.owner, event.error)
        elif isinstance(event, Failed) and event.exchange.id in self._odd_terminals:
            check = catalogue.TERMINALS if _OPEN_STREAMS in event.error.message else catalogue.FRAMES
            self._tell(check, f"request {event.exchange.id}: {event.error.message}")
        elif isinstance(event, StrayReceived):
            name = Kind(event.kind).name
            self._tell(catalogue.FRAMES, f"{name} for request {event.request_id}, which was never made")
        else:
            return False
        return True

    def look(self) -> None:
        """What the connection has counted since the last look."""
        connection = self._connection
        if self.is_deaf:
            return
        if connection.stragglers > self._stragglers:
            self._stragglers = connection.stragglers
            self._tell(catalogue.TERMINALS, "frames came for a request after its terminal")
        if connection.bad_progress > self._bad_progress:
            self._bad_progress = connection.bad_progress
            self._tell(catalogue.PROGRESS, "a progress, work or total was NaN, infinite or out of its range")

    def on_call_over(self, call: Call, silence_s: float) -> None:
        if call.longest_silence_s > silence_s and not call.is_cancelled:  # that check has a limit of its own
            self._tell(
                catalogue.KEEPALIVE,
                f"{call.cap}: no frame for {call.longest_silence_s:.1f} s; at most {silence_s:g} s may pass",
            )

    def _on_log(self, frame: Frame) -> None:
        meta, number = frame.meta, frame.request_id
        level = meta.get("level")
        if level not in LEVELS:
            self._tell(catalogue.FRAMES, f"LOG with the level {level!r}; there are {', '.join(sorted(LEVELS))}")
        progress, work, phase = meta.get("progress"), meta.get("work"), meta.get("phase")
        if isinstance(progress, int | float) and 0 <= progress <= 1:
            self._advance(number, float(progress), "LOG")
        if isinstance(work, int | float):
            last_phase, last_work = self._work.get(number, (phase, work))
            if last_phase == phase and work < last_work:
                self._tell(
                    catalogue.PROGRESS,
                    f"request {number}: work fell from {last_work:g} to {work:g} within the phase {phase!r}",
                )
            self._work[number] = (phase, work)

    def _advance(self, number: int, progress: float, what: str) -> None:
        last = self._progress.get(number, 0.0)
        if progress < last - _SLACK:
            self._tell(
                catalogue.PROGRESS, f"request {number}: the progress of {what} fell from {last:g} to {progress:g}"
            )
        self._progress[number] = max(last, progress)

    def _on_end(self, frame: Frame) -> None:
        self._odd_terminals.add(frame.request_id)
        if frame.request_id % 2 == 0 and frame.request_id in self._connection.exchanges:
            progress = frame.meta.get("progress", 1.0)
            if isinstance(progress, int | float) and not isinstance(progress, bool) and 0 <= progress <= 1:
                self._advance(frame.request_id, float(progress), "END")
            self._forget(frame.request_id)

    def _on_err(self, frame: Frame) -> None:
        meta = frame.meta
        code, error_class, message = meta.get("code"), meta.get("class"), meta.get("message")
        self._forget(frame.request_id)
        if not isinstance(code, str) or not isinstance(error_class, str) or not isinstance(message, str):
            self._odd_terminals.add(frame.request_id)  # the connection says what is wrong with it
            return
        if not _CODE.fullmatch(code):
            self._tell(catalogue.ERRORS, f"ERR with the code {code[:_SHOWN]!r}; expected capitals and underscores")
        elif code in Code.__members__ and Code[code].error_class != error_class:
            wanted = Code[code].error_class
            self._tell(catalogue.ERRORS, f"ERR {code} with the class {error_class!r}; in the table it is {wanted}")
        if not message.strip():
            self._tell(catalogue.ERRORS, f"ERR {code} without a message")

    def _forget(self, number: int) -> None:
        self._progress.pop(number, None)
        self._work.pop(number, None)

    def _on_damaged(self, owner: object, error: CartdeckError) -> None:
        if not isinstance(owner, Call):
            return  # a peer call of the cartridge: it got the ERR
        check = catalogue.CREDIT_KEPT if error.code is Code.CREDIT_VIOLATION else catalogue.FRAMES
        self._tell(check, f"{owner.cap}: {error.message}")

    def _on_connection_damaged(self, error: CartdeckError) -> None:
        if error.code is Code.VERSION_MISMATCH:
            self._tell(catalogue.HANDSHAKE, error.message)
            return
        text = _text_in(self._tap.rest)
        if text:
            self._tell(catalogue.STDOUT, f"stdout carries text between the frames: {text!r}")
        else:
            self._tell(catalogue.FRAMES if self._connection.is_greeted else catalogue.HANDSHAKE, error.message)


def _text_in(data: bytes) -> str:
    """The text that stands where a frame should; "" where it is none. Its first letters were taken for a length; frames
    may follow it, whose first byte is a zero."""
    run = bytes(itertools.takewhile(lambda byte: byte not in _CONTROLS, data[:_SHOWN]))
    text = run.decode("utf-8", "replace")
    return text if len(run) >= min(_SHORTEST_TEXT, max(len(data), 4)) and "\ufffd" not in text[:-1] else ""
