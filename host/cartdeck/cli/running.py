"""Owns one call made from the command line: its events go to the output and the display; a signal cancels it.

It does not know which command made the call, nor what is printed when it fails.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from cartdeck.cli.arguments import check_given, read_items
from cartdeck.cli.bar import open_display
from cartdeck.cli.cap_names import cap_named
from cartdeck.cli.display import Display
from cartdeck.cli.endings import SIGNALS, Interrupted, end_at_signals
from cartdeck.cli.options import CALLING, WRITING
from cartdeck.cli.output import STANDARD_LINE, Output, StandardOutput, TerminalText, open_output
from cartdeck.cli.render import json_line
from cartdeck.engine import Engine
from cartdeck.events import Data, End, Event, Log, Progress, Result
from cartdeck.plain import result_record

TICK_S: Final = 0.2
KEEP_BYTES: Final = 256 * 1024 * 1024
"""How much output one JSON record may hold."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a command wants its call to be run and shown."""

    timeout_s: float | None = None
    as_json: bool = False
    out: Path | None = None
    force: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    spells_items: bool = False
    """The items of sequences are texts of the command line, still to be read by their type."""


def taken_from(given: dict[str, Any]) -> CallOptions:
    """The options of the groups `CALLING` and `WRITING`, which are no longer among what is given then."""
    names = {"timeout": "timeout_s", "quiet": "is_quiet", "verbose": "is_verbose"}
    taken = {name: given.pop(name) for name in (*CALLING, *WRITING) if name in given}
    return CallOptions(**{names.get(name, name): value for name, value in taken.items()})


def run_call(cap: str, arguments: Mapping[str, Any], options: CallOptions) -> None:
    """Makes the call, and writes its output as `options` say.

    Raises what the call raised, ReaderGone, or Interrupted. The file of `--out` is checked before anything starts.
    """

    async def work() -> None:
        with open_output(options.out, force=options.force) as output:
            display = open_display(is_quiet=options.is_quiet, is_verbose=options.is_verbose)
            async with Engine() as engine, shown(display):
                await make_call(engine, cap, arguments, options=options, output=output, display=display)

    run_interruptible(work)


async def make_call(
    engine: Engine,
    cap: str,
    arguments: Mapping[str, Any],
    *,
    options: CallOptions,
    output: Output,
    display: Display,
    lead: bytes = b"",
) -> Result:
    """One call on an engine that runs. The output is committed, and with `as_json` the record is printed.

    `lead` is written before the first piece of output.
    """
    is_streamed = not (options.as_json and isinstance(output, StandardOutput))
    keep_bytes = KEEP_BYTES if options.as_json else 0
    cap = cap_named(cap, [one for status in engine.cartridges() for one in status.cartridge.manifest.caps])
    if options.spells_items:
        definition = engine.router.route_text(cap, arguments).definition
        check_given(definition, arguments)
        arguments = read_items(definition, arguments)
    call = engine.call(cap, arguments, timeout_s=options.timeout_s, keep_bytes=keep_bytes)
    display.begin(cap, call)
    async with call:
        main_output = None if call.route is None else call.route.definition.main_output
        is_sequence = main_output is not None and main_output.is_sequence
        writer = EventWriter(output if is_streamed else None, display, is_sequence=is_sequence, lead=lead)
        async for event in call:
            await writer.take(event)
        await writer.finish()
    result = call.result
    output.commit()
    if options.as_json:
        record = result_record(cap, result, main=main_output)
        if is_streamed:
            for key in ("text", "items", "base64"):
                record.pop(key, None)
            record["out"] = str(options.out)
        await in_thread(StandardOutput().write, json_line(record).encode())
    return result


class EventWriter:
    """Writes a call's main output as it comes, items as JSON lines, and shows the rest. Without an output it only
    shows."""

    def __init__(self, output: Output | None, display: Display, *, is_sequence: bool, lead: bytes = b"") -> None:
        self._output = output
        self._lead = lead
        self._is_sequence = is_sequence
        self._display = display
        self._terminal_text = TerminalText() if output is not None and output.is_terminal else None

    async def take(self, event: Event) -> None:
        match event:
            case Progress():
                self._display.progress(event)
            case Log():
                self._display.log(event)
            case Data(output="", value=value):
                await self._write(json_line(value).encode() if self._is_sequence else value)
            case Data() | End():
                pass

    async def finish(self) -> None:
        """The output has ended: a character that was cut off is an error now."""
        await self._write(b"", is_last=True)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        if self._output is None:
            return
        if data:
            data, self._lead = self._lead + data, b""
        if self._terminal_text is not None:
            data = self._terminal_text.feed(data, is_last=is_last)
        if isinstance(self._output, StandardOutput):
            STANDARD_LINE.follow(data)
        if self._terminal_text is not None:
            data = self._display.around(data)
        if data:
            # In a thread: a reader that pauses (`| less`) stops this call, not the engine's clocks and heartbeats.
            await in_thread(self._output.write, data)


async def in_thread(write: Callable[[bytes], None], data: bytes) -> None:
    await anyio.to_thread.run_sync(write, data, abandon_on_cancel=True)


@asynccontextmanager
async def shown(display: Display) -> AsyncGenerator[None]:
    """Lets the display look at the clock meanwhile, and takes it away at the end."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tick, display)
        try:
            yield
        except BaseException as error:  # carried out bare: a task group would wrap it
            failed = error
        display.close()
        STANDARD_LINE.end_on_terminal()
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _tick(display: Display) -> None:
    while True:
        await anyio.sleep(TICK_S)
        display.tick()


def run_interruptible(work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Runs `work` to its end. The first SIGINT or SIGTERM cancels it and raises Interrupted when it has cleaned up;
    a second one ends the process at once."""
    return anyio.run(_run_interruptible, work)


async def _run_interruptible(work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    interruption: list[int] = []
    outcome: list[Outcome] = []
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            await tasks.start(_watch_signals, scope, interruption)
            try:
                outcome.append(await work())
            except Exception as error:  # carried out bare: a task group would wrap it
                failed = error
        tasks.cancel_scope.cancel()
    if interruption:
        raise Interrupted(interruption[0])
    if failed is not None:
        raise failed
    return outcome[0]


async def _watch_signals(
    scope: anyio.CancelScope, interruption: list[int], *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    try:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if interruption:
                    os._exit(128 + number)  # the kernel ends the cartridges with their parent
                interruption.append(number)
                scope.cancel()
    finally:
        end_at_signals()  # the receiver leaves Python's own handlers behind, and they raise
