"""Owns which files belong to a set of safetensors weights: its index, configuration, tokenizer and processor.

It does not know what is in them. The names are those that transformers and sentence-transformers write.
"""

import re
from collections.abc import Sequence
from typing import Any

from cartdeck_models.hub.gguf_name import F, ListedFile, WeightFiles, last_part

_MAIN = re.compile(r"(?:.*/)?model(?:-\d{5}-of-\d{5})?\.safetensors", re.DOTALL)
_TEXT = re.compile(
    r".*\.(json|jsonl|model|tiktoken|jinja|spm|vocab)|(vocab|merges|added_tokens|special_tokens|vocab-.*)\.txt|.*\.bpe",
    re.IGNORECASE | re.DOTALL,
)
_MODULE_FOLDER = re.compile(r"\d+_[A-Za-z]+")
MODULES = "modules.json"
"""What a sentence-transformers model lists its parts in; each part has a folder such as `1_Pooling`."""


def is_weights(path: str) -> bool:
    return path.lower().endswith(".safetensors")


def main_weights(groups: Sequence[WeightFiles[F]]) -> WeightFiles[F] | None:
    """The set that stands for the model among several: `model.safetensors`, whole or split, nearest to the root.

    Others are variants of it (`model.fp16.safetensors`), copies in another layout (`consolidated.safetensors`) or
    parts (`2_Dense/model.safetensors`). None where nothing decides.
    """
    named = [group for group in groups if _MAIN.fullmatch(group.path)]
    depth = min((group.path.count("/") for group in named), default=0)
    nearest = [group for group in named if group.path.count("/") == depth]
    return nearest[0] if len(nearest) == 1 else None


def companions(group: WeightFiles[F], files: Sequence[F]) -> list[F]:
    """The files beside `group` that its reader needs; those of the repository's root too, for weights in a folder
    that has no configuration of its own."""
    folder = group.path.rpartition("/")[0]
    beside = [file for file in files if _folder(file) == folder]
    if folder and not any(last_part(file.path) == "config.json" for file in beside):
        beside += [file for file in files if not _folder(file)]
    chosen = [file for file in beside if _is_companion(file.path, group)]
    if any(last_part(file.path) == MODULES for file in chosen):
        chosen += [file for file in files if _is_module_part(file.path, folder)]
    by_path = {file.path: file for file in chosen if not is_weights(file.path) or file not in group.files}
    return [by_path[path] for path in sorted(by_path)]


def _is_companion(path: str, group: WeightFiles[Any]) -> bool:
    name = last_part(path)
    if name.endswith(".safetensors.index.json"):
        stem = name.removesuffix(".safetensors.index.json")
        return len(group.files) > 1 and last_part(group.path).startswith(f"{stem}-")
    return _TEXT.fullmatch(name) is not None


def _is_module_part(path: str, folder: str) -> bool:
    inside = path.removeprefix(f"{folder}/") if folder else path
    first, _, rest = inside.partition("/")
    return (
        bool(rest) and _MODULE_FOLDER.fullmatch(first) is not None and rest.endswith((".json", ".safetensors", ".txt"))
    )


def _folder(file: ListedFile) -> str:
    return file.path.rpartition("/")[0]
