"""Owns reading a GBNF grammar far enough to say what is wrong with it and where, before the engine sees it.

It does not know the engine, which reads the grammar again. The engine says nothing of a fault that a caller could use,
loops without end on `{3,1}`, and overruns its stack on brackets that are nested some ten thousand deep.
"""

import re
from collections.abc import Sequence
from typing import Final

from cartdeck_gguf.gbnf_run import MOST_LEFT_OUT, longest_run
from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_CHARACTERS: Final = 65_536
DEEPEST_NESTING: Final = 200
MOST_REPETITIONS: Final = 2000
"""The engine's own limit."""

ROOT: Final = "root"
_NAME = re.compile(r"[A-Za-z0-9-]+")
_ESCAPE = re.compile(r'\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn\\"\[\]])')
_TOKEN = re.compile(r"!?<[^>\n]*>")
_REPEAT = re.compile(r"\{[ \t]*(\d+)[ \t]*(,[ \t]*(\d*)[ \t]*)?\}")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")

_Item = str | None
"""Of a sequence: the name of a rule, or None for anything that takes a character."""


def check_gbnf(text: str) -> None:
    """Raises `INVALID_GRAMMAR`, with `rule`, `line` and `column` in the details, for a grammar that cannot be used."""
    if len(text) > MOST_CHARACTERS:
        raise _invalid(f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are taken")
    if "\0" in text:
        raise _invalid("it has a NUL character")
    reader = _Reader(text)
    rules = reader.read()
    if ROOT not in rules:
        known = ", ".join(sorted(rules)[:10])
        raise _invalid(
            f"it has no rule {ROOT!r}, where every text begins" + (f"; its rules are: {known}" if known else "")
        )
    empty = _rules_that_may_be_empty(rules)
    loop = _find_left_recursion(rules, empty)
    if loop:
        raise _invalid(f"the rule {loop[0]!r} begins with itself: {' → '.join(loop)}", rule=loop[0])
    run, rule = longest_run(rules, empty, reader.copies)
    if run > MOST_LEFT_OUT:
        rule = rule.partition("(")[0]
        message = f"in the rule {rule!r} {run:,} items in a row may be left out, and at most {MOST_LEFT_OUT} are taken"
        raise _invalid(f"{message}; a repetition of one of them, x{{0,100}}, is none", rule=rule)


def explain_refusal(text: str, said: Sequence[str]) -> CartdeckError:
    """The error for a grammar in which nothing wrong was found here, and which the engine refuses all the same."""
    return _invalid("the engine refuses it" + (f": {said[0]}" if said else f" ({len(text):,} characters)"))


def _invalid(message: str, **details: object) -> CartdeckError:
    return failure(
        Code.INVALID_GRAMMAR, f"the grammar cannot be used: {message}", argument="grammar", details=dict(details)
    )


class _Reader:
    """One pass over the text; what it keeps of a rule are the alternatives, each a list of items that must come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rule = ""
        self._rules: dict[str, list[list[_Item]]] = {}
        self._used: dict[str, tuple[int, str]] = {}
        self._made = 0
        self.copies: dict[str, int] = {}
        """How often the rules are repeated that stand for a repetition."""

    def read(self) -> dict[str, list[list[_Item]]]:
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            self._read_rule()
        for name, (position, rule) in self._used.items():
            if name not in self._rules:
                self._at, self._rule = position, rule
                raise self._fault(f"there is no rule {name!r}")
        return self._rules

    def _read_rule(self) -> None:
        name = self._match(_NAME)
        if name is None:
            raise self._fault("expected the name of a rule (letters, digits and -)")
        self._rule = name
        self._skip(_BLANK)
        if not self._text.startswith("::=", self._at):
            raise self._fault("expected ::= after the rule's name")
        self._at += 3
        self._skip(_BLANK_LINES)
        self._rules[name] = self._read_alternatives()
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._fault("expected an item, a | or the end of the line")
        self._skip(_BLANK_LINES)

    def _read_alternatives(self) -> list[list[_Item]]:
        """Brackets are kept on a list, not on Python's stack. Each becomes a rule of its own, under a name that no
        grammar can have."""
        done: list[list[_Item]] = [[]]
        opened: list[tuple[list[list[_Item]], int]] = []
        while self._at < len(self._text):
            sign, start = self._text[self._at], self._at
            if sign == "(":
                opened.append((done, start))
                if len(opened) > DEEPEST_NESTING:
                    raise self._fault(f"brackets are nested more than {DEEPEST_NESTING} deep")
                done = [[]]
                self._at += 1
                self._skip(_BLANK_LINES)
            elif sign == ")" and opened:
                inner, (done, _) = done, opened.pop()
                self._at += 1
                self._append(done, self._new_rule(inner), is_nested=bool(opened))
            elif sign == "|":
                self._at += 1
                self._skip(_BLANK_LINES)
                done.append([])
            elif not self._read_item(done, is_nested=bool(opened)):
                break
        if opened:
            self._at = opened[-1][1]
            raise self._fault("this bracket is never closed")
        return done

    def _read_item(self, done: list[list[_Item]], *, is_nested: bool) -> bool:
        """Whether an item was there."""
        sign, start = self._text[self._at], self._at
        name = self._match(_NAME)
        if name is not None:
            self._used.setdefault(name, (start, self._rule))
            self._append(done, name, is_nested=is_nested)
        elif sign in '"[':
            is_empty = self._read_characters('"' if sign == '"' else "]")
            self._append(done, self._new_rule([[]]) if is_empty else None, is_nested=is_nested)
        elif sign == "." or self._match(_TOKEN) is not None:
            self._at += sign == "."
            self._append(done, None, is_nested=is_nested)
        else:
            return False
        return True

    def _read_characters(self, end: str) -> bool:
        """Reads a text in quotes or a class in brackets; whether it has no character."""
        start = self._at
        self._at += 2 if self._text.startswith("[^", start) else 1
        first = self._at
        while self._at < len(self._text) and self._text[self._at] != end:
            if self._text[self._at] == "\\":
                if self._match(_ESCAPE) is None:
                    raise self._fault('an escape is one of \\x00 \\u0000 \\U00000000 \\t \\r \\n \\\\ \\" \\[ \\]')
            else:
                self._at += 1
        if self._at >= len(self._text):
            self._at = start
            raise self._fault(f"this {'text' if end == chr(34) else 'class of characters'} is never closed")
        self._at += 1
        return self._at == first + 1 and end == '"'

    def _append(self, done: list[list[_Item]], item: _Item, *, is_nested: bool) -> None:
        """Takes the item with the repetitions behind it."""
        blank = _BLANK_LINES if is_nested else _BLANK
        self._skip(blank)
        while self._at < len(self._text) and self._text[self._at] in "*+?{":
            low, most = self._read_repetition()
            if most > 1:
                item = self._new_rule([[item]])
                self.copies[item] = most
            if low == 0:
                item = self._new_rule([[item], []])  # it may be left out
            self._skip(blank)
        done[-1].append(item)

    def _read_repetition(self) -> tuple[int, int]:
        """How often the item before must come, and how often it is written out by the engine."""
        sign = self._text[self._at]
        if sign != "{":
            self._at += 1
            return int(sign == "+"), 1
        match = _REPEAT.match(self._text, self._at)
        if match is None:
            raise self._fault("expected a repetition such as {2}, {2,} or {2,5}")
        low, high = int(match[1]), int(match[3]) if match[3] else None
        if low > MOST_REPETITIONS or (high is not None and not low <= high <= MOST_REPETITIONS):
            raise self._fault(f"expected repetitions from small to large, at most {MOST_REPETITIONS}")
        self._at = match.end()
        return low, max(low, high or 0)

    def _new_rule(self, alternatives: list[list[_Item]]) -> str:
        self._made += 1
        name = f"{self._rule}({self._made})"
        self._rules[name] = alternatives
        return name

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._match(pattern)

    def _fault(self, what: str) -> CartdeckError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        rest = self._text[self._at : self._at + 20].partition("\n")[0]
        found = f"found {rest!r}" if rest else "found the end"
        where = f"line {line}, column {column}" + (f", in the rule {self._rule!r}" if self._rule else "")
        return _invalid(f"{where}: {found}; {what}", rule=self._rule or None, line=line, column=column)


def _find_left_recursion(rules: dict[str, list[list[_Item]]], empty: set[str]) -> list[str]:
    """The names of rules that lead from one back to itself before any character is taken; [] when there are none."""
    first = {name: list(_first_rules(alternatives, empty)) for name, alternatives in rules.items()}
    done: set[str] = set()
    for start in rules:
        path: dict[str, None] = {start: None}
        branches = [iter(first[start])]
        while branches and start not in done:
            name = next(branches[-1], None)
            if name is None:
                done.add(path.popitem()[0])
                branches.pop()
            elif name in path:
                passed = list(path)
                loop = [one for one in passed[passed.index(name) :] if "(" not in one]
                return [*loop, loop[0]] if loop else [name.partition("(")[0]] * 2
            elif name not in done:
                path[name] = None
                branches.append(iter(first[name]))
    return []


def _first_rules(alternatives: list[list[_Item]], empty: set[str]) -> Sequence[str]:
    found: dict[str, None] = {}
    for sequence in alternatives:
        for item in sequence:
            if item is not None:
                found[item] = None
            if item is None or item not in empty:
                break
    return list(found)


def _rules_that_may_be_empty(rules: dict[str, list[list[_Item]]]) -> set[str]:
    """Each alternative waits for the items that are not known to be empty; a rule found empty tells those that wait."""
    waiting: dict[str, list[tuple[str, list[int]]]] = {}
    news: list[str] = []
    for name, alternatives in rules.items():
        for sequence in alternatives:
            missing = [len(sequence)]
            if not sequence:
                news.append(name)
            for item in sequence:
                if item is not None:
                    waiting.setdefault(item, []).append((name, missing))
    empty: set[str] = set()
    while news:
        name = news.pop()
        if name in empty:
            continue
        empty.add(name)
        for other, missing in waiting.get(name, ()):
            missing[0] -= 1
            if missing[0] == 0:
                news.append(other)
    return empty
