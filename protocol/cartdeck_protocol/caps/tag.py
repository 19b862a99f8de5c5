"""Owns the tag language that media and cap URNs share: parsing, canonical text, set inclusion and points.

It does not know prefixes, nor what a key means. The semantics are CapDAG's six canonical forms, read as sets:
a tag says which values a key may have and whether the key may be absent, and one tag fits another where its
set lies inside the other's (https://github.com/machinefabric/capdag, docs 03 to 05).
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

_NAME_MARKS = frozenset("_-/:.")
_VALUE_MARKS = frozenset("_-/:.?!*")
_SIGILS = frozenset("?!*")


class UrnError(ValueError):
    """A text is no URN. `text` is what was read, `position` the character (from 0) where it went wrong."""

    def __init__(self, message: str, *, text: str, position: int) -> None:
        super().__init__(f"{message}, at character {position} of {text!r}")
        self.text = text
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_error, (str(self), self.text, self.position))


class Form(IntEnum):
    """How a tag constrains its key. The number is the points it adds to a URN's specificity."""

    ANY = 0
    """`?x`: no constraint."""
    ABSENT_OR_OTHER = 1
    """`x?=v`: absent, or any value but v."""
    PRESENT = 2
    """`x`: any value."""
    OTHER = 3
    """`x!=v`: any value but v."""
    EXACT = 4
    """`x=v`: v."""
    ABSENT = 5
    """`!x`: absent."""


_SPELLING = {
    Form.ANY: ("?", ""),
    Form.ABSENT_OR_OTHER: ("", "?="),
    Form.PRESENT: ("", ""),
    Form.OTHER: ("", "!="),
    Form.EXACT: ("", "="),
    Form.ABSENT: ("!", ""),
}
_SIGIL_FORMS = {"?": Form.ANY, "!": Form.ABSENT, "*": Form.PRESENT}
_MAY_BE_ABSENT = frozenset({Form.ANY, Form.ABSENT_OR_OTHER, Form.ABSENT})
_ALL_VALUES = frozenset({Form.ANY, Form.PRESENT})
_ALL_BUT_ONE = frozenset({Form.ABSENT_OR_OTHER, Form.OTHER})


class Tag(NamedTuple):
    """What one key may be: a form, and the value where the form has one (else the empty text)."""

    form: Form
    value: str = ""

    def includes(self, other: "Tag") -> bool:
        """Whether everything that `other` allows is allowed by this tag too."""
        if other.form in _MAY_BE_ABSENT and self.form not in _MAY_BE_ABSENT:
            return False
        if other.form is Form.ABSENT or self.form in _ALL_VALUES:
            return True
        if self.form in _ALL_BUT_ONE:
            return (other.form in _ALL_BUT_ONE and other.value == self.value) or (
                other.form is Form.EXACT and other.value != self.value
            )
        return self.form is Form.EXACT and self == other

    def spell(self, key: str) -> str:
        """The canonical text of this tag on `key`."""
        before, between = _SPELLING[self.form]
        return f"{before}{key}{between}{quote_value(self.value) if between else ''}"


ANY = Tag(Form.ANY)
ABSENT = Tag(Form.ABSENT)


class TagSet:
    """An immutable set of tags, at most one for each key."""

    __slots__ = ("_tags", "specificity")

    def __init__(self, tags: Mapping[str, Tag]) -> None:
        self._tags = dict(sorted(tags.items()))
        self.specificity = sum(tag.form for tag in self._tags.values())
        """The sum of the forms' points."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._tags)

    def __len__(self) -> int:
        return len(self._tags)

    def mapping(self) -> Mapping[str, Tag]:
        """A read-only view, sorted by key."""
        return MappingProxyType(self._tags)

    def conforms_to(self, wider: "TagSet") -> bool:
        """Whether each key is inside what `wider` allows; a key that is missing here is open."""
        return all(tag.includes(self._tags.get(key, ANY)) for key, tag in wider._tags.items())

    def meets(self, request: "TagSet") -> bool:
        """Whether what `request` asks for is here; a key that is missing here is absent."""
        return all(tag.includes(self._tags.get(key, ABSENT)) for key, tag in request._tags.items())


class ReadTag(NamedTuple):
    """One tag as it stands in a text; `position` is where its value (or, without one, its key) begins."""

    key: str
    tag: Tag
    position: int


def quote_value(value: str) -> str:
    """`value` as it stands after `=`: bare where it can be, else in quotes with `\\"` and `\\\\` escaped."""
    if value == value.lower() and all(c.isalnum() or c in _VALUE_MARKS for c in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def spell_tags(tags: Iterable[tuple[str, Tag]]) -> str:
    """The canonical text of tags: sorted by key, joined with `;`."""
    return ";".join(tag.spell(key) for key, tag in sorted(tags))


def split_prefix(text: str, prefix: str) -> int:
    """Check that `text` starts with `prefix:` in any case; return the position after the colon."""
    found, colon, _ = text.partition(":")
    if not colon or found.lower() != prefix:
        raise UrnError(f"a {prefix} URN starts with {prefix!r} and a colon", text=text, position=0)
    return len(prefix) + 1


def read_tags(text: str, start: int) -> list[ReadTag]:
    """The tags of `text` from `start` on, in the order written. Empty segments are skipped.

    Raises UrnError for a text that is not of the tag language, and for a key that comes twice.
    """
    tags: list[ReadTag] = []
    keys: set[str] = set()
    position = start
    while position < len(text):
        if text[position] == ";":
            position += 1
            continue
        read, end = _read_tag(text, position)
        if read.key in keys:
            raise UrnError(f"the tag {read.key!r} is there twice", text=text, position=position)
        if end < len(text) and text[end] != ";":
            raise UrnError(f"found {text[end]!r}, expected ';' or the end{_hint(text[end])}", text=text, position=end)
        keys.add(read.key)
        tags.append(read)
        position = end
    return tags


def _read_tag(text: str, start: int) -> tuple[ReadTag, int]:
    qualifier = text[start] if text[start] in "?!" else ""
    key_start = start + len(qualifier)
    end = _end_of_run(text, key_start, _NAME_MARKS)
    key = _check_key(text, key_start, end)
    if text[end : end + 1] in ("?", "!"):
        if qualifier:
            raise UrnError(f"the tag {key!r} is qualified before and after its name", text=text, position=end)
        qualifier = text[end]
        end += 1
    if text[end : end + 1] != "=":
        form = _SIGIL_FORMS[qualifier] if qualifier else Form.PRESENT
        return ReadTag(key, Tag(form), start), end
    value_start = end + 1
    value, end = _read_value(text, value_start)
    if qualifier and value in _SIGILS:
        raise UrnError(f"{qualifier!r} and the value {value!r} do not go together", text=text, position=value_start)
    if qualifier:
        return ReadTag(key, Tag(Form.OTHER if qualifier == "!" else Form.ABSENT_OR_OTHER, value), value_start), end
    if value in _SIGILS:
        return ReadTag(key, Tag(_SIGIL_FORMS[value]), value_start), end
    return ReadTag(key, Tag(Form.EXACT, value), value_start), end


def _check_key(text: str, start: int, end: int) -> str:
    key = text[start:end].lower()
    if not key:
        found = repr(text[start]) if start < len(text) else "the end"
        raise UrnError(f"found {found}, expected a tag's name", text=text, position=start)
    if key.isnumeric():
        raise UrnError(f"the tag name {key!r} is only a number", text=text, position=start)
    if not all(c.isalnum() or c in _NAME_MARKS for c in key):
        raise UrnError(f"the tag name {key!r} has no lower-case form", text=text, position=start)
    return key


def _read_value(text: str, start: int) -> tuple[str, int]:
    if text[start : start + 1] == '"':
        value, end = _read_quoted(text, start)
    else:
        end = _end_of_run(text, start, _VALUE_MARKS)
        value = text[start:end].lower()
    if not value:
        raise UrnError("found no value after '='", text=text, position=start)
    return value, end


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    characters: list[str] = []
    position = start + 1
    while position < len(text):
        character = text[position]
        if character == '"':
            return "".join(characters), position + 1
        if character == "\\":
            position += 1
            character = text[position : position + 1]
            if character and character not in '"\\':
                raise UrnError(f'found the escape \\{character}, expected \\" or \\\\', text=text, position=position)
        elif character < " " or "\x7f" <= character < "\xa0" or "\ud800" <= character <= "\udfff":
            raise UrnError(f"found the control character {character!r}", text=text, position=position)
        characters.append(character)
        position += 1
    raise UrnError("the quoted value has no closing quote", text=text, position=start)


def _end_of_run(text: str, start: int, marks: frozenset[str]) -> int:
    end = start
    while end < len(text) and (text[end].isalnum() or text[end] in marks):
        end += 1
    return end


def _hint(found: str) -> str:
    return " (a value with such a character stands in quotes)" if found in '=", ' else ""


def _rebuild_error(message: str, text: str, position: int) -> UrnError:
    error = UrnError("", text=text, position=position)
    error.args = (message,)
    return error
