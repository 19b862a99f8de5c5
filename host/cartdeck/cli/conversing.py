"""Owns the turns of `cartdeck chat`: a line read, its answer shown as it comes, Ctrl-C for the answer alone.

It does not know what lines mean to the dialogue, nor what the model makes of them.
"""

import codecs
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from cartdeck.cli.bar import open_display
from cartdeck.cli.dialogue import Dialogue, spoken
from cartdeck.cli.display import Display
from cartdeck.cli.endings import SIGNALS, Interrupted, end_at_signals
from cartdeck.cli.option_names import with_options
from cartdeck.cli.output import STANDARD_LINE, StandardOutput
from cartdeck.cli.render import error_text, json_line
from cartdeck.cli.running import KEEP_BYTES, CallOptions, EventWriter, in_thread, shown
from cartdeck.cli.text_options import DIALOGUE, LOADING, MODEL, SAMPLING
from cartdeck.engine import Engine
from cartdeck.events import Data
from cartdeck.plain import result_record
from cartdeck_protocol.errors import CartdeckError, Code, failure

PROMPT: Final = "> "
GREETING: Final = "Ctrl-C stops an answer, Ctrl-D ends. /help lists what else there is.\n"
OPTIONS: Final = tuple(f"--{name.replace('_', '-')}" for name in (*MODEL, *DIALOGUE, *SAMPLING, *LOADING))
"""What a person has given arguments of the cap by."""
TWICE: Final = "Ctrl-D ends the dialogue, and so does another Ctrl-C.\n"
LONGEST_TYPED_BYTES: Final = 4095
"""A terminal that edits lines itself hands on so much of one, and drops the rest without a word."""


class Conversation:
    """A dialogue between standard input and a model. Where both ends are a terminal it is led by prompts."""

    def __init__(
        self,
        dialogue: Dialogue,
        arguments: Mapping[str, Any],
        options: CallOptions,
        *,
        first: str | None = None,
        cap: str = "cap:chat",
    ) -> None:
        self._dialogue = dialogue
        self._arguments = arguments
        self._options = options
        self._first = first
        self._cap = cap
        self._is_led = sys.stdin.isatty() and not options.is_quiet
        self._answering: anyio.CancelScope | None = None
        self._warned = True  # before anything is asked, the first Ctrl-C ends
        self._ended_by: int | None = None

    def run(self) -> None:
        """Goes on until the input ends. Raises ReaderGone, and Interrupted by a signal; an error ends it only where no
        person sits at a terminal."""
        anyio.run(self._run)
        if self._ended_by is not None:
            raise Interrupted(self._ended_by)

    async def _run(self) -> None:
        failed: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                await tasks.start(self._watch_signals, scope)
                try:
                    async with Engine() as engine:
                        await self._converse(engine)
                except Exception as error:  # carried out bare: a task group would wrap it
                    failed = error
            tasks.cancel_scope.cancel()
        if failed is not None and self._ended_by is None:
            raise failed

    async def _watch_signals(self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            with anyio.open_signal_receiver(*SIGNALS) as signals:
                task_status.started()
                async for number in signals:
                    self._take_signal(number, scope)
        finally:
            end_at_signals()  # the receiver leaves Python's own handlers behind, and they raise

    def _take_signal(self, number: int, scope: anyio.CancelScope) -> None:
        if self._ended_by is not None:
            os._exit(128 + number)  # the kernel ends the cartridges with their parent
        if number == signal.SIGINT and self._answering is not None:
            self._answering.cancel()
        elif number == signal.SIGINT and self._is_led and not self._warned:
            self._warned = True
            self._lead("\n" + TWICE + PROMPT)
        else:
            self._ended_by = number
            if self._answering is None:
                self._lead("\n")  # the prompt is left as it stands
            scope.cancel()

    async def _converse(self, engine: Engine) -> None:
        self._lead(GREETING)
        line = self._first
        while not self._dialogue.is_over:
            self._warned = False
            try:
                if line is None:
                    line = await self._ask()
                if line is None:
                    self._lead("\n")
                    return
                if line.strip():
                    await self._take_line(engine, line)
            except CartdeckError as error:
                if not self._is_led:
                    raise
                self._lead(STANDARD_LINE.leave() + error_text(with_options(error, OPTIONS)))
            line = None

    async def _ask(self) -> str | None:
        self._lead(PROMPT)
        line = await anyio.to_thread.run_sync(_read_line, abandon_on_cancel=True)
        self._warned = False
        return line

    async def _take_line(self, engine: Engine, line: str) -> None:
        said = self._dialogue.obey(line)
        if said is None:
            self._dialogue.say(spoken(line))
            await self._answer(engine)
        elif said:
            self._lead(said + "\n", is_urgent=not self._is_led)

    async def _answer(self, engine: Engine) -> None:
        """One turn. What came of an answer that was stopped stays in the dialogue."""
        heard = Heard()
        display = open_display(is_quiet=self._options.is_quiet, is_verbose=self._options.is_verbose)
        try:
            with anyio.CancelScope() as scope:
                self._answering = scope
                async with shown(display):
                    await self._call(engine, display, heard)
        finally:
            self._answering = None
            self._dialogue.hear(heard.text())
        if scope.cancelled_caught:
            self._lead("(stopped)\n")

    async def _call(self, engine: Engine, display: Display, heard: "Heard") -> None:
        options, output = self._options, StandardOutput()
        arguments = {**self._arguments, "messages": self._dialogue.messages()}
        call = engine.call(self._cap, arguments, timeout_s=options.timeout_s, keep_bytes=KEEP_BYTES)
        display.begin(self._cap, call)
        writer = EventWriter(None if options.as_json else output, display, is_sequence=False)
        async with call:
            async for event in call:
                heard.take(event)
                await writer.take(event)
            await writer.finish()
        if options.as_json:
            main = None if call.route is None else call.route.definition.main_output
            await in_thread(output.write, json_line(result_record(self._cap, call.result, main=main)).encode())
        elif not output.is_terminal:
            await in_thread(output.write, b"\n")

    def _lead(self, text: str, *, is_urgent: bool = False) -> None:
        """Words for the person at the terminal."""
        if self._is_led or is_urgent:
            sys.stderr.write(text)
            sys.stderr.flush()


class Heard:
    """The text of an answer as far as it came."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []

    def take(self, event: object) -> None:
        if isinstance(event, Data) and not event.output:
            self._parts.append(self._decoder.decode(event.value))

    def text(self) -> str:
        return "".join(self._parts)


def _read_line() -> str | None:
    """The next line of standard input without its end; None when there is none.

    Raises `INVALID_TEXT` for bytes that are no text, and `BAD_ARGUMENT` for a line that the terminal may have cut.
    """
    data = sys.stdin.buffer.readline()
    if len(data) > LONGEST_TYPED_BYTES and sys.stdin.isatty():
        raise failure(
            Code.BAD_ARGUMENT,
            f"A terminal hands on {LONGEST_TYPED_BYTES:,} bytes of a line, and the end of this one is lost; nothing "
            "was said to the model",
            details={"remedy": "Put a long text into a file: cartdeck chat - < FILE."},
        )
    try:
        line = data.decode(sys.stdin.encoding)
    except UnicodeDecodeError as error:
        raise failure(Code.INVALID_TEXT, f"The line is no {sys.stdin.encoding} text: {error}.") from None
    return line.removesuffix("\n").removesuffix("\r") if line else None
