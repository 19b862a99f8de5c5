"""Owns the life of a cartridge's process with its pipes: started, ready, lost, dead or ended.

It does not know requests: the session is told once when it is over, before the process is gone, so that callers learn
of a death at once and the ladder takes its time behind their backs.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from cartdeck.discovery import Cartridge
from cartdeck.sessions.channel import Channel, Line
from cartdeck.sessions.handshake import Handshake
from cartdeck.sessions.launch import launch, prepare
from cartdeck.sessions.obituary import last_details, named, obituary
from cartdeck.sessions.process import Process
from cartdeck.settings import Settings
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_protocol.wire import Connection, Event

_MOST_DRAIN_S: Final = 0.5
"""A dead process's pipe that a surviving grandchild keeps busy is read for so long at most."""

Tapping: TypeAlias = Callable[[str, int, Connection], Line]
"""From a session's name, its process id and its connection to what stands between connection and pipes: the connection
itself, or a reader of a trace."""


class Life:
    """`name` is what messages call it. `on_over` gets the error for those who still wait, and whether the end was
    asked for. `tap` is asked once what the channel shall drive."""

    def __init__(
        self,
        name: str,
        cartridge: Cartridge,
        settings: Settings,
        *,
        connection: Connection,
        on_events: Callable[[list[Event]], None],
        on_over: Callable[[CartdeckError, bool], None],
        tap: Tapping,
    ) -> None:
        self._name = name
        self._cartridge = cartridge
        self._settings = settings
        self._connection = connection
        self._on_events = on_events
        self._on_over = on_over
        self._tap = tap
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._pipe_error: CartdeckError | None = None
        self._is_ready = False
        self.handshake = Handshake(connection, self.flush)
        self.process: Process | None = None
        self.ending: asyncio.Task[None] | None = None
        """The walk down the ladder, once it has begun: done when the process and all it started are gone."""

    # -- the start

    async def start(self) -> None:
        """Start the process and shake hands. Raises what went wrong; the caller calls `fail_start` then."""
        limits = self._settings.start
        self._check_wanted()
        await prepare(self._cartridge)
        self._check_wanted()
        process = self.process = launch(self._cartridge, self._settings)
        process.on_exit = self._on_exit
        line = self._tap(self._name, process.pid, self._connection)
        self._channel = Channel(line, process.pipes, on_events=self._on_events, on_lost=self._on_lost)
        try:
            async with asyncio.timeout(limits.hard_s):
                await self.handshake.run(process, self._cartridge.manifest, limits)
        except TimeoutError:
            message = f"it was not ready after {limits.hard_s:g} s, the most that is allowed"
            raise failure(Code.START_FAILED, message) from None
        self._check_wanted()
        self._is_ready = True

    def _check_wanted(self) -> None:
        if self.ending is not None:
            raise failure(Code.ABORTED, "it was ended while it started")

    def fail_start(self, error: CartdeckError) -> None:
        """`start` raised: nobody can use the process. One that died meanwhile has said so itself."""
        if self.ending is None:
            self.fall(named(error, self._name, self.process, lines=self._settings.log.error_lines))

    # -- the pipes

    @property
    def is_blocked(self) -> bool:
        return self._channel is not None and self._channel.is_blocked

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes read and written so far."""
        channel = self._channel
        return (0, 0) if channel is None else (channel.read_bytes, channel.written_bytes)

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def flush_soon(self) -> None:
        if self._channel is not None:
            self._channel.flush_soon()

    # -- the end

    def end(self, error: CartdeckError, *, is_urgent: bool = False) -> "asyncio.Task[None]":
        """End the process by the ladder; those who still wait get `error`. Safe to call again: the task is the same,
        and it goes on when its awaiter is cancelled, if that one shields it."""
        if self.ending is None:
            self.ending = self._loop.create_task(self._walk_down(is_urgent=is_urgent))
            self.handshake.break_off(error)
            self._on_over(error, True)
        return self.ending

    def fall(self, error: CartdeckError) -> None:
        """The process is at fault: those who wait learn it now, and it is ended without grace."""
        if self.ending is None:
            if self.process is not None:
                self.process.kill()
            self.ending = self._loop.create_task(self._walk_down(is_urgent=True))
            self.handshake.break_off(error)
            self._on_over(error, False)

    def hang(self, how: str) -> None:
        """It lives and does nothing."""
        details = last_details(self.process, lines=self._settings.log.error_lines)
        self.fall(failure(Code.HUNG, f"{self._name} {how}", details=details))

    async def _walk_down(self, *, is_urgent: bool) -> None:
        process, channel = self.process, self._channel
        if channel is not None:
            channel.close_writing()
        if process is not None:
            await process.stop(self._settings.stop, is_urgent=is_urgent)
        if channel is not None:
            channel.close()
        elif process is not None:  # its start went wrong before the pipes had an owner
            process.close_pipes()

    # -- its own death

    def on_last_words(self, error: CartdeckError) -> None:
        """The process says why it leaves; the end of file follows."""
        if self._pipe_error is None:
            self._pipe_error = error

    def _on_lost(self, error: CartdeckError | None) -> None:
        """The pipe is at its end. The exit code follows within a moment, or the process is made to leave."""
        if self.ending is not None:
            return
        if error is not None:
            self._pipe_error = error
        if self.process is None or not self.process.is_running or (error and error.code is not Code.CARTRIDGE_DIED):
            self._die()
        else:
            self._loop.call_later(self._settings.stop.silence_s, self._die)

    def _on_exit(self) -> None:
        """The process is gone. What it wrote before is still in the pipe: read that first."""
        if self.ending is None:
            self._drain(self._loop.time() + _MOST_DRAIN_S, -1)

    def _drain(self, until_s: float, seen_bytes: int) -> None:
        channel = self._channel
        if self.ending is not None or channel is None:
            return
        if not channel.is_reading or channel.read_bytes == seen_bytes or self._loop.time() >= until_s:
            self._die()
        else:
            self._loop.call_later(self._settings.stop.silence_s, self._drain, until_s, channel.read_bytes)

    def _die(self) -> None:
        if self.ending is None and self.process is not None:
            lines = self._settings.log.error_lines
            self.fall(
                obituary(self._name, self.process, was_ready=self._is_ready, pipe_error=self._pipe_error, lines=lines)
            )
