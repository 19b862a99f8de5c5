"""Owns the media URN, the name of a kind of data: `media:` is anything, `media:void` is nothing.

It does not know what the tags stand for, nor how such data is encoded.
"""

from collections.abc import Mapping
from typing import Any

from cartdeck_protocol.caps.intern import InternTable
from cartdeck_protocol.caps.tag import Tag, TagSet, UrnError, read_tags, spell_tags, split_prefix

_VOID = "void"


class MediaUrn:
    """A kind of data. Immutable, hashable, equal by canonical text. Made by `parse`."""

    __slots__ = ("_tags", "_text")

    def __init__(self, tags: TagSet) -> None:
        self._tags = tags
        self._text = "media:" + spell_tags(tags.mapping().items())

    @classmethod
    def parse(cls, text: str) -> "MediaUrn":
        """The media URN that `text` spells; the same text gives the same object. Raises UrnError."""
        return _PARSED.known.get(text) or _parse(text)

    @property
    def tags(self) -> Mapping[str, Tag]:
        return self._tags.mapping()

    @property
    def specificity(self) -> int:
        """The sum of its tags' points: how much it says."""
        return self._tags.specificity

    @property
    def is_open(self) -> bool:
        """Whether this says nothing: `media:`, or tags such as `?x` that constrain nothing."""
        return not self._tags.specificity

    @property
    def is_void(self) -> bool:
        """Whether this is `media:void`: no data at all."""
        return self._text == "media:void"

    def conforms_to(self, other: "MediaUrn") -> bool:
        """Whether all data of this kind is of the other kind too. Reflexive and transitive."""
        return self is other or self._tags.conforms_to(other._tags)

    def is_equivalent(self, other: "MediaUrn") -> bool:
        """Whether the two name the same data: each conforms to the other."""
        return self.conforms_to(other) and other.conforms_to(self)

    def is_comparable(self, other: "MediaUrn") -> bool:
        """Whether one of the two conforms to the other."""
        return self.conforms_to(other) or other.conforms_to(self)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"MediaUrn.parse({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, MediaUrn) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (MediaUrn.parse, (self._text,))


_PARSED: InternTable[MediaUrn] = InternTable()


def _parse(text: str) -> MediaUrn:
    read = read_tags(text, split_prefix(text, "media"))
    if len(read) > 1 and any(tag.key == _VOID for tag in read):
        extra = next(tag for tag in read if tag.key != _VOID)
        raise UrnError("media:void is nothing, so no other tag describes it", text=text, position=extra.position)
    urn = MediaUrn(TagSet({tag.key: tag.tag for tag in read}))
    return _PARSED.keep(text, urn, canonical=str(urn))
