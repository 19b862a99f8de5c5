"""Owns what a catalog may say of one guard: a model that is asked about requests and answers, and what follows.

It does not know the models that it guards, nor how it is asked.
"""

import string
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cartdeck.catalog.entry import MOST_CONTEXT, Capability, Entry, Name, Origin, Source, Table

TEMPLATE_KEYS: Final = ("prompt", "answer", "dialogue", "role")
"""What stands in braces in a guard's prompt: the last message of the user, the answer (empty before there is one), all
messages as lines of "User: …" and "Agent: …", and whose message is looked at: User or Agent."""
_DIALOGUE: Final = "dialogue"


class GuardFormat(StrEnum):
    """In what form a guard writes its verdict."""

    LLAMAGUARD3 = "llamaguard3"
    QWEN3GUARD = "qwen3guard"
    SHIELDGEMMA = "shieldgemma"
    JSON = "json"


_OWN_TEMPLATE: Final = frozenset({GuardFormat.LLAMAGUARD3, GuardFormat.QWEN3GUARD})
"""Formats of models whose own chat template makes the question."""

When = Literal["before", "after"]


def template_keys(text: str) -> list[str]:
    """The keys in a template. Raises ValueError for one that is not known, or for braces that do not match."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{error}; braces of the text itself are written twice: {{{{ and }}}}") from None
    keys = [key for _, key, _, _ in parts if key is not None]
    for _, key, form, conversion in parts:
        if key is not None and (key not in TEMPLATE_KEYS or form or conversion):
            known = ", ".join(f"{{{one}}}" for one in TEMPLATE_KEYS)
            raise ValueError(f"{{{key[:40]}}} is no key of a guard's prompt; expected {known}, or {{{{ for a brace")
    return keys


def _check_template(text: str) -> str:
    if not template_keys(text):
        raise ValueError("it has no key: the guard would be asked the same of every request")
    return text


Template = Annotated[str, Field(max_length=64 * 1024), AfterValidator(_check_template)]


class Guard(Table):
    """One guard. It has a source of its own, or is a model of the catalog, which clients do not see then."""

    description: str = Field(default="", max_length=2000)
    source: Source | None = None
    origin: Origin | None = None
    model: Name | None = None
    backend: Name | None = None
    context_size: int | None = Field(default=None, ge=1, le=MOST_CONTEXT)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Of its caps; with a source alone."""
    format: GuardFormat
    ask: Literal["chat", "completion"] = "chat"
    """By which cap: as a dialogue, by the model's own template, or as a text that the model continues."""
    prompt: Template | None = None
    """What it is asked; without one, in a chat, it is shown the dialogue itself."""
    answer_prompt: Template | None = None
    """What it is asked of answers, where that is another."""
    when: tuple[When, ...] = Field(default=("before", "after"), min_length=1)
    action: Literal["refuse", "flag"] = "refuse"
    when_down: Literal["refuse", "allow"] = "refuse"
    """What becomes of a request that it gives no verdict on: it failed, was too slow, or what it said has no form."""
    timeout_s: float = Field(default=30.0, gt=0, le=3600, allow_inf_nan=False)
    threshold: float = Field(default=0.5, gt=0, lt=1, allow_inf_nan=False)
    """Of shieldgemma: from which probability of a Yes on it is unsafe."""
    controversial: Literal["unsafe", "safe"] = "unsafe"
    """Of qwen3guard: what its verdict Controversial counts as."""
    categories: tuple[Annotated[str, Field(min_length=1, max_length=80)], ...] = Field(default=(), max_length=64)
    """Of json: the only ones that it may name."""

    @model_validator(mode="after")
    def _one_home(self) -> Self:
        if (self.source is None) == (self.model is None):
            raise ValueError("a guard has either a source or a model of the catalog, not both and not neither")
        said = {"origin", "backend", "context_size", "arguments"} & self.model_fields_set
        if self.model is not None and said:
            raise ValueError(f"{', '.join(sorted(said))}: said by the table of the model {self.model}")
        if len(set(self.when)) != len(self.when):
            raise ValueError("when: a time is there twice")
        return self

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.prompt is None and (self.ask == "completion" or self.format not in _OWN_TEMPLATE):
            why = "to continue a text" if self.ask == "completion" else f"of the format {self.format}"
            raise ValueError(f"prompt is missing: a guard that is asked {why} needs it")
        if self.prompt is None and self.answer_prompt is not None:
            raise ValueError("answer_prompt is for a guard that has a prompt")
        for when, name, needed in (("before", "prompt", "prompt"), ("after", "answer_prompt", "answer")):
            text = (self.answer_prompt if when == "after" else None) or self.prompt
            if when in self.when and text is not None and not {needed, _DIALOGUE} & set(template_keys(text)):
                where = name if getattr(self, name) is not None else "prompt"
                raise ValueError(f"{where}: asked {when} a request it shows neither {{{needed}}} nor {{dialogue}}")
        return self

    @model_validator(mode="after")
    def _of_its_format(self) -> Self:
        owners: Mapping[str, GuardFormat] = {
            "threshold": GuardFormat.SHIELDGEMMA,
            "controversial": GuardFormat.QWEN3GUARD,
            "categories": GuardFormat.JSON,
        }
        for key, form in owners.items():
            if key in self.model_fields_set and self.format is not form:
                raise ValueError(f"{key} is for the format {form}")
        return self

    @property
    def capability(self) -> Capability:
        return Capability.CHAT if self.ask == "chat" else Capability.COMPLETION

    def own_entry(self) -> Entry | None:
        """What it is run by, where it has a source of its own."""
        if self.source is None:
            return None
        return Entry(
            source=self.source,
            origin=self.origin,
            backend=self.backend,
            context_size=self.context_size,
            arguments=self.arguments,
            capabilities=(self.capability,),
        )
