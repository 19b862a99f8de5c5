"""Owns the statements of a plan as they were written, and how text becomes statements.

It does not know what they mean together: the same name may stand twice here, or nowhere.
"""

from dataclasses import dataclass, field
from typing import Any

from cartdeck.plans.fault import Place, plan_fault
from cartdeck.plans.graph import side_value
from cartdeck.plans.scanner import Scanner
from cartdeck_protocol.errors import CartdeckError


@dataclass(slots=True)
class Word:
    """A name, and where it stands."""

    text: str
    place: Place


@dataclass(slots=True)
class Header:
    """`ALIAS CAP`, or `NAME media:…` for an input. `urn` is text as it was written."""

    alias: Word
    urn: Word
    comments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Wiring:
    """`SOURCE -> ALIAS -> TARGET`. `()` stands for no source, or no target; a source `ALIAS.OUTPUT` is a side output of
    a step."""

    sources: list[Word]
    alias: Word
    target: Word | None
    comments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Naming:
    """`ALIAS.OUTPUT -> NAME`: a side output as a value with a name of its own."""

    alias: Word
    output: Word
    target: Word
    comments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Constant:
    """`ALIAS.ARGUMENT = VALUE`."""

    alias: Word
    argument: Word
    value: Any
    comments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Setting:
    """`ALIAS {NAME=VALUE, …}`."""

    alias: Word
    values: dict[str, Any]
    places: dict[str, Place]
    comments: list[str] = field(default_factory=list[str])


Statement = Header | Wiring | Naming | Constant | Setting

_NO_CAP = "=-<>"
"""What no cap begins with: a mistyped arrow, or an = without its argument."""

_BEGINNING = "a statement: ALIAS CAP, SOURCE -> ALIAS -> TARGET, ALIAS.ARGUMENT = VALUE or ALIAS {SETTING=VALUE}"


@dataclass(slots=True)
class Reading:
    """What was read of a text: its statements, each with the comments above it and behind it; the comments below the
    last; and a fault for each statement that cannot be read."""

    statements: list[Statement] = field(default_factory=list[Statement])
    rest: list[str] = field(default_factory=list[str])
    faults: list[CartdeckError] = field(default_factory=list[CartdeckError])


def read_statements(text: str, *, most_faults: int = 1) -> Reading:
    """Read `text`, up to so many faults. They are BAD_PLAN with line and column.

    Behind a statement that cannot be read, reading goes on where it ends. Where a bracket that is never closed hides
    its end, what fails is passed over until a statement can be read: it may be a part of the one before.
    """
    scanner = Scanner(text)
    reading = Reading()
    is_lost = False
    while True:
        scanner.skip(lines=True)
        if scanner.is_at_end:
            reading.rest = scanner.take_comments()
            return reading
        start = scanner.position
        try:
            reading.statements.append(_whole_statement(scanner))
            is_lost = False
        except CartdeckError as fault:
            if is_lost:
                scanner.pass_line()
                continue
            reading.faults.append(fault.with_traceback(None))
            if len(reading.faults) == most_faults:
                return reading
            is_lost = not scanner.pass_statement(start)


def _whole_statement(scanner: Scanner) -> Statement:
    """A statement to its end, in brackets or not."""
    is_bracketed = scanner.take("[")
    opened = scanner.place(scanner.position - 1)
    statement = _statement(scanner, is_bracketed=is_bracketed)
    scanner.skip(lines=is_bracketed)
    if is_bracketed and not scanner.take("]"):
        if scanner.is_at_end:
            raise plan_fault("this [ is never closed", opened, candidates=["]"])
        scanner.refuse("]")
    if is_bracketed:
        scanner.skip(lines=False)
    elif not scanner.is_at_line_end and not scanner.is_at("["):
        scanner.refuse("the end of the line")
    statement.comments = scanner.take_comments()
    return statement


def _statement(scanner: Scanner, *, is_bracketed: bool) -> Statement:
    scanner.skip(lines=is_bracketed)
    if scanner.is_at("("):
        return _wiring(scanner, _group(scanner))
    alias = _word(scanner, _BEGINNING)
    if _comes_arrow(scanner):
        return _wiring(scanner, [alias])
    scanner.skip(lines=is_bracketed)
    if scanner.take("."):
        name = _word(scanner, "the name of an argument, or of an output")
        if _comes_arrow(scanner):
            return _from_side(scanner, alias, name)
        return _constant(scanner, alias, name, is_bracketed=is_bracketed)
    if scanner.take("{"):
        return _setting(scanner, alias)
    place = scanner.place()
    is_cap = not any(scanner.is_at(mark) for mark in _NO_CAP)
    urn = scanner.urn() if is_cap else ""
    if not urn:
        scanner.refuse(f"the cap of {alias.text}, or ->")
    return Header(alias, Word(urn, place))


def _word(scanner: Scanner, wanted: str) -> Word:
    place = scanner.place()
    return Word(scanner.name(wanted), place)


def _comes_arrow(scanner: Scanner) -> bool:
    """Take an arrow, which may stand on the next line. What does not lead to one is left where it was."""
    position, comments = scanner.position, len(scanner.comments)
    scanner.skip(lines=True)
    if scanner.take_arrow():
        return True
    scanner.position = position
    del scanner.comments[comments:]
    return False


def _group(scanner: Scanner) -> list[Word]:
    scanner.take("(")
    words: list[Word] = []
    scanner.skip(lines=True)
    if scanner.take(")"):
        return words
    while True:
        words.append(_source(scanner))
        scanner.skip(lines=True)
        if scanner.take(")"):
            return words
        if not scanner.take(","):
            scanner.refuse(", or )")
        scanner.skip(lines=True)


def _source(scanner: Scanner) -> Word:
    """A value, or `ALIAS.OUTPUT`."""
    word = _word(scanner, "the name of a value")
    if not scanner.take("."):
        return word
    return Word(side_value(word.text, scanner.name("the name of an output")), word.place)


def _alias(scanner: Scanner, wanted: str) -> Word:
    alias = _word(scanner, wanted)
    if alias.text == "LOOP":
        raise plan_fault("LOOP is not written: a sequence that meets a single argument is looped over", alias.place)
    return alias


def _from_side(scanner: Scanner, alias: Word, output: Word) -> Wiring | Naming:
    """What follows `ALIAS.OUTPUT ->`: a name, or a step and its target."""
    scanner.skip(lines=True)
    word = _alias(scanner, "a name for that output, or the alias of a step")
    if not _comes_arrow(scanner):
        return Naming(alias, output, word)
    return _target(scanner, [Word(side_value(alias.text, output.text), alias.place)], word)


def _wiring(scanner: Scanner, sources: list[Word]) -> Wiring:
    if scanner.text[scanner.position - 1] == ")" and not _comes_arrow(scanner):
        scanner.skip(lines=False)
        scanner.refuse("->")
    scanner.skip(lines=True)
    alias = _alias(scanner, "the alias of a step")
    if not _comes_arrow(scanner):
        scanner.skip(lines=False)
        scanner.refuse("->")
    return _target(scanner, sources, alias)


def _target(scanner: Scanner, sources: list[Word], alias: Word) -> Wiring:
    """The end of a wiring, behind its second arrow."""
    scanner.skip(lines=True)
    if scanner.take("("):
        scanner.skip(lines=True)
        if not scanner.take(")"):
            scanner.refuse("): a step has one target, or () for none")
        return Wiring(sources, alias, None)
    return Wiring(sources, alias, _word(scanner, "the name of what the step gives"))


def _constant(scanner: Scanner, alias: Word, argument: Word, *, is_bracketed: bool) -> Constant:
    scanner.skip(lines=is_bracketed)
    if not scanner.take("="):
        scanner.refuse("=, or -> behind the name of an output")
    scanner.skip(lines=is_bracketed)
    return Constant(alias, argument, scanner.value(is_bracketed=is_bracketed))


def _setting(scanner: Scanner, alias: Word) -> Setting:
    setting = Setting(alias, {}, {})
    scanner.skip(lines=True)
    if scanner.take("}"):
        return setting
    while True:
        name = _word(scanner, "the name of a setting")
        if name.text in setting.values:
            raise plan_fault(f"{name.text} is set twice", name.place)
        scanner.skip(lines=True)
        if not scanner.take("="):
            scanner.refuse("=")
        scanner.skip(lines=True)
        setting.values[name.text] = scanner.word("a value")
        setting.places[name.text] = name.place
        scanner.skip(lines=True)
        if scanner.take("}"):
            return setting
        if not scanner.take(","):
            scanner.refuse(", or }")
        scanner.skip(lines=True)
