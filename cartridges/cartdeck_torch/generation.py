"""Owns a request for texts on its way from a prompt: what was asked, its counts, how it ended.

It does not know what makes it. The counts are read by another thread while it is made.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from cartdeck_modelkit.dialogue.messages import Dialogue
from cartdeck_modelkit.dialogue.tool_stream import CallSplitter
from cartdeck_modelkit.dialogue.tools import CallSyntax, ToolUse
from cartdeck_modelkit.image import RgbImage
from cartdeck_modelkit.sampling import LARGEST_SEED, SamplingSettings
from cartdeck_modelkit.told_text import TokenRecord
from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.describing import Description

BESIDE_TOOLS: Final = ("json-schema", "n")


@dataclass(slots=True)
class Question:
    """A dialogue, and what its template is given beside it. `pictures` are its images, decoded."""

    dialogue: Dialogue
    tool_use: ToolUse = field(default_factory=ToolUse)
    template: str | None = None
    """Another template than the model's own."""
    pictures: list[RgbImage] = field(default_factory=list[RgbImage])


@dataclass(slots=True, kw_only=True)
class Generation(Description):
    """Texts that continue `prompt`, or answer `question`; one, or as many as the settings say.

    `syntax` says how calls of tools are written in the answer, once its prompt is made; `completion_tokens` counts
    those of all texts, `finish_reason` is that of the first.
    """

    settings: SamplingSettings
    question: Question | None = None
    syntax: CallSyntax | None = None
    first_token_s: float | None = None

    def seed(self, index: int) -> int:
        """The seed of the text `index`."""
        return (self.settings.seed + index) % (LARGEST_SEED + 1)


def check_beside_tools(settings: SamplingSettings) -> None:
    """Raises `BAD_ARGUMENT` for what cannot be asked for beside tools."""
    for name, is_given in zip(BESIDE_TOOLS, (settings.json_schema is not None, settings.texts > 1), strict=True):
        if is_given:
            message = f"{name} is given beside tools, which the answer is held to already; expected one of them"
            raise failure(Code.BAD_ARGUMENT, message, argument=name)


def text_event(index: int, text: str) -> dict[str, Any]:
    """More of another text than the first, as it travels on `events`."""
    return {"type": "text", "index": index, "text": text}


def token_events(index: int, records: list[TokenRecord]) -> list[dict[str, Any]]:
    """What is told of tokens, as it travels on `events`."""
    return [record.as_event(index) for record in records]


def finish_event(generation: Generation, index: int, reason: str) -> dict[str, Any]:
    """The end of one of several texts, as it travels on `events`."""
    return {"type": "finish", "index": index, "finish_reason": reason, "seed": generation.seed(index)}


def splitter_for(generation: Generation) -> CallSplitter | None:
    """What tells the calls of the answer from its text; None where it can hold none."""
    return None if generation.syntax is None else CallSplitter(generation.syntax)
