"""Owns the check that what a step gives is what its cap declares, before the next step sees it.

It does not know calls or steps: it looks at pieces and items.
"""

import codecs
from functools import cache
from typing import Any, Final

from cartdeck_protocol.caps import ArgumentDefinition, MediaUrn, OutputDefinition, ValueKind, check_value, decode_value
from cartdeck_protocol.errors import CartdeckError, Code, failure

_F32: Final = MediaUrn.parse("media:f32")
_F32_BYTES: Final = 4
_FREE_KINDS: Final = frozenset({ValueKind.TEXT, ValueKind.BYTES})


class Conformance:
    """What is declared of one output, and whether something is it. One of these serves all calls of a step."""

    __slots__ = ("_is_f32", "_is_given", "_like", "_title", "is_free", "is_sequence", "is_whole", "media", "name")

    def __init__(self, output: OutputDefinition) -> None:
        self.media = output.media
        self.name = str(output.media)
        self._title = f"the output {output.name}".rstrip()
        self.is_sequence = output.is_sequence
        self._like = ArgumentDefinition(name="the output", media=output.media, documentation="")
        self._is_f32 = output.media.conforms_to(_F32)
        self._is_given = self._like.kind is not ValueKind.BYTES
        self.is_whole = not output.is_sequence and self._like.kind not in _FREE_KINDS
        """Only all of it can be judged, as JSON: nothing is handed on before."""
        self.is_free = not self._is_given and not self._is_f32 and not output.is_sequence
        """Any bytes are right."""

    def check_stream(self, media: str, *, is_sequence: bool) -> None:
        """Raises BAD_OUTPUT for a stream of another kind than the one declared."""
        if is_sequence != self.is_sequence:
            shapes = ("one value", "a sequence")
            raise self.wrong(f"found {shapes[is_sequence]}, expected {shapes[self.is_sequence]}")
        if media and media != self.name and not MediaUrn.parse(media).conforms_to(self.media):
            raise self.wrong(f"found {media}, expected {self.media}")

    def wrong(self, what: str) -> CartdeckError:
        """The error that says `what` is not as declared."""
        return failure(Code.BAD_OUTPUT, f"{self._title} is not what the cap declares: {what}")

    @property
    def is_text(self) -> bool:
        """One text, which can be judged as it comes."""
        return self._like.kind is ValueKind.TEXT and not self.is_sequence

    def check_whole(self, data: bytes) -> None:
        """Raises BAD_OUTPUT unless `data` is all of such an output."""
        if self._is_f32 and (not data or len(data) % _F32_BYTES):
            raise self.wrong(f"found {len(data)} bytes, expected float32 numbers of {_F32_BYTES} bytes each")
        if self._is_given:
            try:
                decode_value(self._like, data)
            except CartdeckError as error:
                raise self.wrong(str(error)) from None

    def check_item(self, item: Any) -> None:
        """Raises BAD_OUTPUT unless `item` is one of such a sequence."""
        if self._is_f32 and (not isinstance(item, bytes) or not item or len(item) % _F32_BYTES):
            raise self.wrong("an item is no vector of float32 numbers")
        if self._is_given:
            try:
                check_value(self._like, item)
            except CartdeckError as error:
                raise self.wrong(str(error)) from None


@cache
def conformance_of(output: OutputDefinition) -> Conformance:
    """One for all steps with the same output."""
    return Conformance(output)


class OutputCheck:
    """Whether the pieces of one output, as they come, are what is declared. Everything raises BAD_OUTPUT.

    `mirrored` is what a cap that gives back its input was given; it is looked at where it is there as a whole.
    """

    __slots__ = ("_alias", "_conformance", "_decoder", "_mirror", "_whole")

    def __init__(self, conformance: Conformance, alias: str, mirrored: Any) -> None:
        self._conformance = conformance
        self._alias = alias
        self._decoder = codecs.getincrementaldecoder("utf-8")() if conformance.is_text else None
        self._whole: list[bytes] | None = [] if conformance.is_whole else None
        given: Any = mirrored.encode() if isinstance(mirrored, str) else mirrored
        self._mirror = memoryview(given) if isinstance(given, bytes) else None

    def feed(self, value: Any) -> None:
        if self._decoder is not None:
            self._decode(value, is_last=False)
        elif self._conformance.is_sequence:
            self._conformance.check_item(value)
        if self._whole is not None:
            self._whole.append(value)
        if self._mirror is not None:
            if bytes(self._mirror[: len(value)]) != value:
                raise unlike_input(self._alias)
            self._mirror = self._mirror[len(value) :]

    def finish(self) -> None:
        if self._decoder is not None:
            self._decode(b"", is_last=True)
        if self._mirror:
            raise unlike_input(self._alias)
        if self._whole is not None:
            self._conformance.check_whole(b"".join(self._whole))

    def _decode(self, piece: bytes, *, is_last: bool) -> None:
        assert self._decoder is not None
        try:
            self._decoder.decode(piece, is_last)
        except UnicodeDecodeError as error:
            found = f"byte {error.start} of a piece is {error.object[error.start]:#04x} ({error.reason})"
            raise self._conformance.wrong(f"it is no UTF-8 text: {found}") from None


def unlike_input(alias: str) -> CartdeckError:
    """The error of a cap with effect=none that gave something else than it was given."""
    return failure(Code.BAD_OUTPUT, f"{alias} says that it gives back what it is given (effect=none), and did not")
