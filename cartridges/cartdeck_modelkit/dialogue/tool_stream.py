"""Owns telling calls of tools from text as an answer comes: text is passed on at once, a call when it is whole.

It does not know which tools there are, nor where either goes.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck_modelkit.dialogue.tools import CallSyntax

_decoder: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that is whole: `arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


class CallSplitter:
    """Takes an answer in pieces of text; gives text and calls in their order."""

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._held: str = ""
        self._is_in_call = False
        self._has_begun = False
        self.calls = 0
        """How many calls were given out."""

    def push(self, text: str) -> list[str | ToolCall]:
        """What `text` makes certain."""
        self._held += text
        found: list[str | ToolCall] = []
        while True:
            part = self._next_call() if self._is_in_call else self._next_text()
            if part is None:
                return found
            if part:
                found.append(part)

    def finish(self, *, is_cut: bool = False) -> str:
        """The text that was held back; that of a call which is not whole is left out, and of an answer that was cut
        what may have become one."""
        held, self._held = self._held, ""
        return "" if self._is_in_call or is_cut else held

    def _next_text(self) -> str | None:
        """Text up to a call or to what may become one; None when there is nothing more to say of what came."""
        opening = self._syntax.opening
        if not opening:
            return self._bare_text()
        start = self._held.find(opening)
        if start >= 0:
            text, self._held = self._held[:start], self._held[start + len(opening) :]
            self._is_in_call = True
            return text if text.strip() else ""
        safe = len(self._held) - _overlap(self._held, opening)
        if not safe or (self.calls and not self._held[:safe].strip()):
            return None  # between calls there is only white space, which nobody needs
        text, self._held = self._held[:safe], self._held[safe:]
        return text

    def _bare_text(self) -> str | None:
        """Without marks the first character that is no space decides for the whole answer."""
        if not self._has_begun:
            first = self._held.lstrip(_SPACE)[:1]
            if not first:
                return None
            self._has_begun, self._is_in_call = True, first == ("[" if self._syntax.is_list else "{")
            if self._is_in_call:
                return ""
        text, self._held = self._held, ""
        return text or None

    def _next_call(self) -> ToolCall | str | None:
        """The call at the beginning of what is held; None while it is not whole; no text where a list of them ends."""
        syntax = self._syntax
        body = self._held.lstrip(_SPACE + "[," if syntax.is_list else _SPACE)
        if syntax.is_list and body.startswith("]"):
            self._held, self._is_in_call = body[1:], not syntax.opening
            return ""
        closing = syntax.closing or "}"
        if closing not in body:
            return None
        try:
            value, end = _decoder.raw_decode(body)
        except ValueError:
            return None  # the mark stands inside a text of the arguments
        rest = body[end:].lstrip()
        if not rest.startswith(syntax.closing):
            return None
        self._held = rest[len(syntax.closing) :]
        self._is_in_call = syntax.is_list or not syntax.opening
        self.calls += 1
        record = cast("dict[str, Any]", value)
        arguments = json.dumps(record[syntax.arguments_key], ensure_ascii=False)
        return ToolCall(record["name"], arguments)


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that begins `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
