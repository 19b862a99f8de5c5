"""Owns one text on its way from a prompt: what was asked, its counts, how it ended.

It does not know what makes it. The counts are read by another thread while it is made.
"""

from dataclasses import dataclass
from typing import Any

from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_torch.describing import Description


@dataclass(slots=True)
class Dialogue:
    """Messages in OpenAI's shape, and what their template is given beside them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    template: str | None = None
    """Another template than the model's own."""


@dataclass(slots=True, kw_only=True)
class Generation(Description):
    """A text that continues `prompt`, or answers `dialogue`."""

    settings: SamplingSettings
    dialogue: Dialogue | None = None
    first_token_s: float | None = None
