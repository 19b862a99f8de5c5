"""Owns the cap URN, the name of what can be asked for, and which candidate may serve which request.

It does not know who serves a cap, nor its arguments. Dispatch and specificity are CapDAG's
(https://github.com/machinefabric/capdag, docs 06 and 07).
"""

from collections.abc import Mapping
from typing import Any

from cartdeck_protocol.caps.intern import InternTable
from cartdeck_protocol.caps.media import MediaUrn
from cartdeck_protocol.caps.tag import Form, ReadTag, Tag, TagSet, UrnError, read_tags, spell_tags, split_prefix

ANYTHING = MediaUrn.parse("media:")
ANY_EFFECT = "?"
DECLARED = "declared"
_EFFECTS = (DECLARED, "none", "patch")
_STRUCTURAL = ("in", "out", "effect")


class CapUrn:
    """A cap: what goes in, what comes out, its effect, and the tags that name it.

    Immutable, hashable, equal by canonical text. Made by `parse`.
    """

    __slots__ = ("_tags", "_text", "effect", "input", "output", "specificity")

    def __init__(self, tags: TagSet, *, input_media: MediaUrn, output_media: MediaUrn, effect: str) -> None:
        self._tags = tags
        self.input = input_media
        self.output = output_media
        self.effect = effect
        """`declared` (the usual), `none` (what comes out is what went in), `patch`, or `?` (a request's "any")."""
        self.specificity = 10_000 * output_media.specificity + 100 * input_media.specificity + tags.specificity
        """10,000 for each point of the output, 100 for each of the input, 1 for each of the tags."""
        self._text = "cap:" + spell_tags(self._all_tags().items())

    @classmethod
    def parse(cls, text: str) -> "CapUrn":
        """The cap URN that `text` spells; the same text gives the same object. Raises UrnError."""
        return _PARSED.known.get(text) or _parse(text)

    @property
    def tags(self) -> Mapping[str, Tag]:
        """The tags that name the cap: all but `in`, `out` and `effect`."""
        return self._tags.mapping()

    def serves(self, request: "CapUrn") -> bool:
        """Whether this cap, as a candidate, may serve `request`.

        What the request sends must be what this cap takes, and what this cap gives must be what the request wants
        (a side that the request leaves open is not asked about); the effects are equal, or the request says
        `?effect`; and the request's tags are met, where a tag that this cap lacks is absent.
        """
        return (
            (request.input.is_open or request.input.conforms_to(self.input))
            and (request.output.is_open or self.output.conforms_to(request.output))
            and request.effect in (self.effect, ANY_EFFECT)
            and self._tags.meets(request._tags)
        )

    def conforms_to(self, other: "CapUrn") -> bool:
        """Whether this cap can stand in for `other` on every side, each read as it is written.

        It takes at least what the other takes, gives at most what the other gives, and its tags lie inside the
        other's. Reflexive and transitive. For routing use `serves`.
        """
        return (
            other.input.conforms_to(self.input)
            and self.output.conforms_to(other.output)
            and other.effect in (self.effect, ANY_EFFECT)
            and self._tags.conforms_to(other._tags)
        )

    def is_equivalent(self, other: "CapUrn") -> bool:
        """Whether the two are the same cap: each can stand in for the other."""
        return self.conforms_to(other) and other.conforms_to(self)

    def is_comparable(self, other: "CapUrn") -> bool:
        """Whether one of the two can stand in for the other."""
        return self.conforms_to(other) or other.conforms_to(self)

    def with_tags(self, *names: str) -> "CapUrn":
        """This cap with more tags: names such as `gguf`, or tags such as `language=en`.

        Raises UrnError where a text is no tag, or contradicts a tag that is there.
        """
        tags = dict(self.tags)
        for name in names:
            for read in read_tags(name, 0):
                if read.key in _STRUCTURAL or tags.get(read.key, read.tag) != read.tag:
                    raise UrnError(f"the tag cannot be added to {self}", text=name, position=read.position)
                tags[read.key] = read.tag
        urn = CapUrn(TagSet(tags), input_media=self.input, output_media=self.output, effect=self.effect)
        return CapUrn.parse(str(urn))

    def _all_tags(self) -> dict[str, Tag]:
        tags = dict(self.tags)
        if self.input != ANYTHING:
            tags["in"] = Tag(Form.EXACT, str(self.input))
        if self.output != ANYTHING:
            tags["out"] = Tag(Form.EXACT, str(self.output))
        if self.effect == ANY_EFFECT:
            tags["effect"] = Tag(Form.ANY)
        elif self.effect != DECLARED:
            tags["effect"] = Tag(Form.EXACT, self.effect)
        return tags

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"CapUrn.parse({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CapUrn) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CapUrn.parse, (self._text,))


_PARSED: InternTable[CapUrn] = InternTable()


def closeness(candidate: CapUrn, request: CapUrn) -> tuple[int, int]:
    """The sort key of a candidate that serves `request`: the smallest is the best, equal keys are a tie.

    Candidates at least as specific as the request come first, the closest of them first of all; then those that
    say less than the request, again the closest first.
    """
    distance = candidate.specificity - request.specificity
    return (0, distance) if distance >= 0 else (1, -distance)


def rank(candidates: "list[CapUrn] | tuple[CapUrn, ...]", request: CapUrn) -> list[CapUrn]:
    """The candidates that serve `request`, the best first; ties keep their order."""
    able = [candidate for candidate in candidates if candidate.serves(request)]
    return sorted(able, key=lambda candidate: closeness(candidate, request))


def _parse(text: str) -> CapUrn:
    read = read_tags(text, split_prefix(text, "cap"))
    structural = {tag.key: tag for tag in read if tag.key in _STRUCTURAL}
    tags = TagSet({tag.key: tag.tag for tag in read if tag.key not in _STRUCTURAL})
    input_media = _side(structural.get("in"), text)
    output_media = _side(structural.get("out"), text)
    effect = _effect(structural.get("effect"), text)
    if effect == DECLARED and not len(tags) and input_media == ANYTHING == output_media:
        raise UrnError("a cap must say something; the identity is cap:effect=none", text=text, position=len(text))
    if effect == "none" and not input_media.conforms_to(output_media):
        raise UrnError(
            f"effect=none gives back its input, but {input_media} is no {output_media}",
            text=text,
            position=structural["effect"].position,
        )
    urn = CapUrn(tags, input_media=input_media, output_media=output_media, effect=effect)
    return _PARSED.keep(text, urn, canonical=str(urn))


def _side(read: ReadTag | None, text: str) -> MediaUrn:
    if read is None or read.tag.form is Form.PRESENT:
        return ANYTHING
    if read.tag.form is not Form.EXACT:
        raise UrnError(f"{read.key!r} takes one media URN", text=text, position=read.position)
    try:
        return MediaUrn.parse(read.tag.value)
    except UrnError as error:
        raise UrnError(f"{read.key!r} takes a media URN: {error}", text=text, position=read.position) from None


def _effect(read: ReadTag | None, text: str) -> str:
    if read is None:
        return DECLARED
    if read.tag.form in (Form.ANY, Form.PRESENT):
        return ANY_EFFECT
    if read.tag.form is Form.EXACT and read.tag.value in _EFFECTS:
        return read.tag.value
    raise UrnError(f"'effect' is one of {', '.join(_EFFECTS)}, or ?effect", text=text, position=read.position)
