"""Owns which kinds of models this cartridge runs, and for which caps.

It does not know how: a kind that is not listed here is refused by its name before any weights are read.
"""

from enum import Enum
from typing import Final

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.folder import ModelFolder


class Task(Enum):
    """What a model is made for."""

    EMBED_TEXT = "embedding texts"
    EMBED_IMAGE = "embedding images"
    DESCRIBE = "describing images"
    TRANSCRIBE = "transcribing speech"
    GENERATE = "generating text"


WITHOUT_GGUF: Final = (Task.EMBED_IMAGE, Task.TRANSCRIBE)
"""No cap for these is served of a GGUF file."""

ENCODERS: Final = ("bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
CAUSAL: Final = (
    "llama",
    "mistral",
    "qwen3",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
)
SEEING: Final = ("idefics3", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Language models with eyes: for dialogues with images, and to describe one. SmolVLM calls itself idefics3."""
SEEING_SOME: Final = ("qwen3_5", "qwen3_5_moe")
"""Kinds of language models with eyes in some folders, and without in others."""
GRID_EYES: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", *SEEING_SOME)
"""Kinds whose images have as many tokens as they are large."""
KINDS: Final = {
    Task.EMBED_TEXT: (*ENCODERS, "clip"),
    Task.EMBED_IMAGE: ("clip",),
    Task.DESCRIBE: ("blip", *SEEING, *SEEING_SOME),
    Task.TRANSCRIBE: ("whisper",),
    Task.GENERATE: (*CAUSAL, *SEEING),
}


def has_eyes(folder: ModelFolder) -> bool:
    """Whether the folder's language model sees images: of a kind that may, one that holds the tower for it and says how
    they are prepared."""
    if folder.model_type not in SEEING_SOME:
        return folder.model_type in SEEING
    names = (name for entries in folder.weights.values() for name in entries)
    has_tower = "vision_config" in folder.config and any("visual." in name for name in names)
    return has_tower and folder.image_preparation is not None


def tasks_of(folder: ModelFolder) -> list[Task]:
    """What the folder's model is made for."""
    is_blind = folder.model_type in SEEING_SOME and not has_eyes(folder)
    found = [task for task, kinds in KINDS.items() if folder.model_type in kinds]
    return [task for task in found if not (is_blind and task is Task.DESCRIBE)]


def check_kind(folder: ModelFolder, task: Task) -> None:
    """Raises `UNSUPPORTED` where the model is made for something else, `UNSUPPORTED_ARCHITECTURE` where its kind is not
    known; both with what is known."""
    if folder.model_type in KINDS[task]:
        return
    known = ", ".join(KINDS[task])
    made_for = [other.value for other, kinds in KINDS.items() if folder.model_type in kinds]
    if made_for:
        raise failure(
            Code.UNSUPPORTED,
            f"{folder.name} is a model of the kind {folder.model_type}, made for {' and '.join(made_for)}; "
            f"for {task.value} it takes one of: {known}",
            argument="model",
            details={"architecture": folder.model_type},
        )
    raise failure(
        Code.UNSUPPORTED_ARCHITECTURE,
        f"{folder.name} is a model of the kind {folder.model_type!r}; for {task.value} this cartridge knows: {known}",
        argument="model",
        phase="load",
        details={"architecture": folder.model_type, "known": list(KINDS[task])},
    )
