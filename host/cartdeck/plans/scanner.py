"""Owns the words of the notation: names, arrows, marks, cap URNs, values, comments, each with its line and column.

It does not know which of them may follow which.
"""

import json
import re
from bisect import bisect_right
from typing import Any, Final, NoReturn

from cartdeck.plans.fault import Place, plan_fault

# A hyphen that begins an arrow is no part of the name before it.
_NAME: Final = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_]|-(?!-*>))*")
_ARROW: Final = re.compile(r"-+>")
_BLANKS: Final = re.compile(r"[ \t\r]+")
_WORD: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_MUST_BE_JSON: Final = frozenset('"[{')
_SHOWN: Final = 20
_OPENING: Final = frozenset("[({")
_CLOSING: Final = frozenset("])}")
_MARKS: Final = re.compile(r'"(?:\\.|[^"\\\n])*"?|#[^\n]*|-+>|[\[({]|[\])}]|\n|[^\s"#\[({\])}]')
"""What tells where a statement ends: texts in quotes, comments, arrows, brackets, ends of lines, and all else."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON has")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def is_name(text: str) -> bool:
    """Whether `text` can be the name of a step or a value."""
    return _NAME.fullmatch(text) is not None and not text.endswith("-")


class Scanner:
    """A place in a text that moves on. Every method raises BAD_PLAN for what it does not find."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position: int = 1 if text.startswith("\ufeff") else 0
        self.comments: list[str] = []
        """Those that were passed since somebody took them."""
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    # -- where

    def place(self, position: int | None = None) -> Place:
        position = self.position if position is None else position
        line = bisect_right(self._lines, position)
        return Place(line, position - self._lines[line - 1] + 1)

    def found(self) -> str:
        """What is here, for a message."""
        if self.position >= len(self.text):
            return "the end"
        if self.text[self.position] == "\n":
            return "the end of the line"
        word = _NAME.match(self.text, self.position) or _ARROW.match(self.text, self.position)
        return repr(word[0][:_SHOWN] if word else self.text[self.position])

    def refuse(self, wanted: str) -> NoReturn:
        raise plan_fault(f"found {self.found()}, expected {wanted}", self.place(), candidates=[wanted])

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.text)

    @property
    def is_at_line_end(self) -> bool:
        return self.is_at_end or self.text[self.position] == "\n"

    # -- moving on

    def skip(self, *, lines: bool) -> None:
        """Pass over blanks and comments, and the ends of lines too if `lines`."""
        text = self.text
        while self.position < len(text):
            character = text[self.position]
            if character == "#":
                end = text.find("\n", self.position)
                end = len(text) if end < 0 else end
                self.comments.append(text[self.position + 1 : end].strip())
                self.position = end
            elif blanks := _BLANKS.match(text, self.position):
                self.position = blanks.end()
            elif character == "\n" and lines:
                self.position += 1
            else:
                return

    def take_comments(self) -> list[str]:
        comments, self.comments = self.comments, []
        return comments

    def pass_statement(self, start: int) -> bool:
        """Go on behind the statement that began at `start` and has a fault here: at the first end of a line that no
        bracket and no arrow carries on. False, and behind this line, where a bracket is never closed."""
        text, depth, last, end = self.text, 0, "", -1
        for mark in _MARKS.finditer(text, start):
            word = mark[0]
            if word == "\n":
                if end < 0 and depth == 0 and mark.start() >= self.position and not last.endswith(">"):
                    end = mark.start()
                continue
            if word.startswith("#"):
                continue
            if end >= 0 and _ARROW.fullmatch(word) is None:
                break
            end, last = -1, word
            depth = max(0, depth + (word in _OPENING) - (word in _CLOSING))
        if end < 0 and depth:
            self.pass_line()
            return False
        self.position = len(text) if end < 0 else end
        self.comments.clear()
        return True

    def pass_line(self) -> None:
        """Go on behind this line."""
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end
        self.comments.clear()

    def is_at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.position)

    def take(self, mark: str) -> bool:
        """Pass over `mark` if it is here."""
        if not self.is_at(mark):
            return False
        self.position += len(mark)
        return True

    def take_arrow(self) -> bool:
        arrow = _ARROW.match(self.text, self.position)
        if arrow is None:
            return False
        self.position = arrow.end()
        return True

    def name(self, wanted: str) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            self.refuse(wanted)
        self.position = match.end()
        return match[0]

    def word(self, wanted: str) -> Any:
        """A bare value of a setting: a number where it looks like one, else text."""
        match = _WORD.match(self.text, self.position)
        if match is None:
            self.refuse(wanted)
        self.position = match.end()
        try:
            return json.loads(match[0], parse_constant=_refuse_constant)
        except ValueError:
            return match[0]

    def urn(self) -> str:
        """The text of a URN: up to the end of the line, a `]` or a comment, which may all stand inside quotes."""
        text, start, is_quoted = self.text, self.position, False
        while self.position < len(text):
            character = text[self.position]
            if character == "\\" and is_quoted:
                self.position += 1
            elif character == '"':
                is_quoted = not is_quoted
            elif not is_quoted and character in "]#\n":
                break
            self.position += 1
        self.position = min(self.position, len(text))
        found = text[start : self.position].rstrip()
        self.position = start + len(found)
        return found

    def value(self, *, is_bracketed: bool) -> Any:
        """A constant: JSON, or bare text up to the end of the statement (` #` begins a comment, a lone # does not)."""
        text, start = self.text, self.position
        try:
            value, end_of_value = _JSON.raw_decode(text, start)
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e400, half of a surrogate pair
        except (ValueError, RecursionError) as error:
            if text[start : start + 1] in _MUST_BE_JSON and start < len(text):
                why = getattr(error, "msg", None) or str(error)
                raise plan_fault(f"this is no JSON value: {why}", self.place(start)) from None
        else:
            self.position = end_of_value
            if self._is_statement_end(is_bracketed=is_bracketed):
                if value is None:
                    raise plan_fault("null is no value; leave the line out instead", self.place(start))
                return value
            if text[start] in _MUST_BE_JSON:
                self.skip(lines=False)
                self.refuse("the end of the statement")
        pattern = r"[ \t]*(?=\n|\]|$)|[ \t]+#" if is_bracketed else r"[ \t\r]*(?=\n|$)|[ \t]+#"
        end = re.compile(pattern).search(text, start)
        stop = len(text) if end is None else end.start()
        self.position = stop
        if stop == start:
            self.position = start
            self.refuse("a value")
        return text[start:stop]

    def _is_statement_end(self, *, is_bracketed: bool) -> bool:
        rest = _BLANKS.match(self.text, self.position)
        position = rest.end() if rest else self.position
        if position >= len(self.text) or self.text[position] == "\n" or (self.text[position] == "#" and rest):
            return True
        return is_bracketed and self.text[position] == "]"
