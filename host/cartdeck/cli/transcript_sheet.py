"""Owns how a transcript is printed while it is made: each segment as it closes, in the form that was asked for.

It does not know forms: it is given what makes a segment's block.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cartdeck.cli.display import Display, harmless
from cartdeck.cli.output import STANDARD_LINE, StandardOutput
from cartdeck.events import Data

Block = Callable[[int, Mapping[str, Any]], str]
"""`block(number, segment)`: a segment, counted from 1, as it is written."""


class TranscriptSheet:
    """One recording's. What is understood of a long one is there before its end, also when it is given up."""

    def __init__(self, block: Block | None, *, lead: str, display: Display) -> None:
        """Without a `block` it is the plain text. `lead` is written before either."""
        self._block = block
        self._display = display
        self._output = StandardOutput()
        self._held = lead
        """Written before what comes next; a text's last spaces are never written."""
        self._segments = 0
        self._is_begun = False

    def take(self, event: Data) -> None:
        """A piece of the call's output."""
        if self._block is None and event.output == "":
            text = event.text
            shown = text.rstrip()
            if shown:
                self._write(self._held + harmless(shown))
                self._held = ""
            self._held += text[len(shown) :]
        elif self._block is not None and event.output == "segments":
            self._segments += 1
            self._write(self._held + self._block(self._segments, segment_of(event.value)))
            self._held = ""

    def finish(self) -> None:
        """The transcript is whole, and the display is closed: on a terminal that ended the line."""
        rest = "" if self._is_begun else self._held
        if self._block is None:
            rest = "" if self._is_begun and self._output.is_terminal else rest.strip(" ") + "\n"
        self._output.write(rest.encode(errors="surrogateescape"))

    def _write(self, text: str) -> None:
        self._is_begun = True
        data = text.encode(errors="surrogateescape")  # a file's name may be no UTF-8
        STANDARD_LINE.follow(data)
        self._output.write(self._display.around(data) if self._output.is_terminal else data)


def segment_of(value: Any) -> dict[str, Any]:
    """A segment as it comes from the cartridge."""
    return json.loads(value) if isinstance(value, bytes | str) else value
