"""Owns the types of fields that several requests share: numbers as JSON has them, texts, and what they are checked for.

It does not know which request has them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST_STOPS: Final = 32


class Strict(BaseModel):
    """A request: unknown fields are refused, and no text counts as a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Plain(Strict):
    """A request whose fields are absent where they are null."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in cast("dict[str, Any]", given).items() if value is not None}


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 1e9 is a whole one."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
Count: TypeAlias = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Seed: TypeAlias = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**32 - 2)]
Stops: TypeAlias = Annotated[list[str], BeforeValidator(_stops), Field(max_length=MOST_STOPS)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]
LogitBias: TypeAlias = dict[str, float]

HARMLESS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "store": ((False,), "Nothing is kept here."),
    "service_tier": (("auto", "default"), "There is one tier."),
}
"""Fields that ask for nothing when they have these values."""


class Noted(Strict):
    """Fields of OpenAI's that say who asks and change no answer: taken, and used for nothing."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


def as_record(value: Any) -> Mapping[str, Any]:
    """The value if it is a record, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else a list of it."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]
