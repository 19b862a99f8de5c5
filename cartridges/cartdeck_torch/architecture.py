"""Owns what is said of an architecture by its name alone: whether it is run here, and which caps models of it serve.

It does not know torch.
"""

from typing import Any, Final

from cartdeck_torch.family import KINDS, Task

_CAPS: Final = {
    Task.EMBED_TEXT: ("embed-text",),
    Task.EMBED_IMAGE: ("embed-image",),
    Task.DESCRIBE: ("describe-image",),
    Task.TRANSCRIBE: ("transcribe-speech",),
    Task.GENERATE: ("chat", "generate-text"),
}


def describe_architecture(architecture: str) -> dict[str, Any]:
    """The record of architecture-info, without the engine."""
    made_for = [cap for task, kinds in KINDS.items() if architecture in kinds for cap in _CAPS[task]]
    return {"architecture": architecture, "is_known": bool(made_for), "made_for": sorted(made_for)}
