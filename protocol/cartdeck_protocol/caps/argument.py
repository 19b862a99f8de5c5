"""Owns what is known of one argument and of one output of a cap.

It does not know how values are checked, nor where definitions come from.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cartdeck_protocol.caps.media import MediaUrn


class ValueKind(StrEnum):
    """What a value is in Python. All but BYTES travel as UTF-8 text; numbers, booleans and JSON as JSON text."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"
    BYTES = "bytes"


_KINDS = (
    (MediaUrn.parse("media:fmt=json"), ValueKind.JSON),
    (MediaUrn.parse("media:integer;numeric"), ValueKind.INTEGER),
    (MediaUrn.parse("media:numeric"), ValueKind.NUMBER),
    (MediaUrn.parse("media:boolean"), ValueKind.BOOLEAN),
    (MediaUrn.parse("media:enc=utf-8"), ValueKind.TEXT),
)
_LIST = MediaUrn.parse("media:list")
_RECORD = MediaUrn.parse("media:record")


def kind_of(media: MediaUrn) -> ValueKind:
    """The kind of a value of this media URN: the first of the kinds' patterns that it conforms to, else BYTES."""
    return next((kind for pattern, kind in _KINDS if media.conforms_to(pattern)), ValueKind.BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentDefinition:
    """One argument of a cap. For what each field means to an author, see README.md."""

    name: str
    media: MediaUrn
    documentation: str
    required: bool = False
    default: Any | None = None
    is_main: bool = False
    is_instance: bool = False
    is_stream: bool = False
    is_sequence: bool = False
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[Any, ...] = ()
    cli: str = ""
    """`position`, or an option such as `--max-tokens`."""
    kind: ValueKind = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.media))
        if not self.cli:
            object.__setattr__(self, "cli", "position" if self.is_main else f"--{self.name}")

    @property
    def has_default(self) -> bool:
        return self.default is not None

    @property
    def is_list(self) -> bool:
        """Whether a JSON value must be a list (the media URN has `list`)."""
        return self.kind is ValueKind.JSON and self.media.conforms_to(_LIST)

    @property
    def is_record(self) -> bool:
        """Whether a JSON value, or each item of a JSON list, must be a record (the media URN has `record`)."""
        return self.kind is ValueKind.JSON and self.media.conforms_to(_RECORD)

    @property
    def item_kind(self) -> ValueKind | None:
        """What each item of a JSON list must be, where the other tags of the media URN say so."""
        scalars = (kind for pattern, kind in _KINDS[1:] if self.media.conforms_to(pattern))
        return next(scalars, None) if self.is_list else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDefinition:
    """One output of a cap; the main one has the empty name."""

    media: MediaUrn
    documentation: str
    name: str = ""
    is_sequence: bool = False
