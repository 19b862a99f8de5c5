"""Owns a call whose course is written down as it goes: its stages into the journal, its log lines into the tails.

It does not know who asked. What comes is noted when it comes from the cartridge, not when the client takes it.
"""

from collections.abc import Mapping
from typing import Any

from cartdeck.calls.call import Call
from cartdeck.server.live.journal import Journal, Stage, stage_of
from cartdeck.server.live.log_tails import LogTails
from cartdeck.switch import Switch
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import InStream, Logged


class WatchedCall(Call):
    """As the call of an engine; the journal's entry is there from its beginning to its end."""

    __slots__ = ("_entry", "_has_output", "_journal", "_model", "_tails")

    def __init__(
        self,
        engine: Switch,
        cap: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout_s: float | None,
        keep_bytes: int | None,
        journal: Journal,
        tails: LogTails,
        model: str | None = None,
    ) -> None:
        super().__init__(engine, cap, arguments, timeout_s=timeout_s, keep_bytes=keep_bytes)
        self._journal = journal
        self._tails = tails
        self._entry = journal.begin(cap, model)
        self._has_output = False

    def begin(self) -> None:
        try:
            super().begin()
        except CartdeckError as error:
            self._journal.fail(self._entry, error)
            raise
        self._entry.cartridge = self.key.cartridge
        if self.route is not None:
            self._entry.cap = self.route.definition.alias
        self._journal.note(self._entry)

    def on_opened(self) -> None:
        self._journal.advance(self._entry, Stage.FIRST)
        super().on_opened()

    def on_stream(self, stream: InStream, payload: bytes | None) -> None:
        if payload:
            self._note_output()
        super().on_stream(stream, payload)

    def on_chunk(self, stream: InStream, payload: bytes) -> None:
        if not self._has_output:
            self._note_output()
        super().on_chunk(stream, payload)

    def _note_output(self) -> None:
        if not self._has_output:
            self._has_output = True
            self._journal.advance(self._entry, Stage.TOKENS)

    def on_log(self, event: Logged) -> None:
        if event.phase is not None and not self._has_output:
            self._journal.advance(self._entry, stage_of(event.phase))
        if event.progress is None and event.work is None and event.phase is None:
            self._tails.add(self.key.cartridge, "call", event.level, event.message)
        elif not self._has_output:
            self._journal.tell(self._entry, event.message, fraction=event.progress, work=event.work, total=event.total)
        super().on_log(event)

    def on_notice(self, message: str, phase: str) -> None:
        self._journal.advance(self._entry, stage_of(phase))
        self._journal.tell(self._entry, message, fraction=None, work=None, total=None)
        super().on_notice(message, phase)

    def on_finished(self, progress: float, provenance: dict[str, Any]) -> None:
        if not self._is_cancelled:
            self._journal.finish(self._entry, provenance)
        super().on_finished(progress, provenance)

    def on_failed(self, error: CartdeckError) -> None:
        self._journal.fail(self._entry, error)
        super().on_failed(error)
