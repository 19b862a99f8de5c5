"""Owns how the vectors of a text's tokens become one, as the model's sentence-transformers files say.

It does not know tensors. The files: modules.json lists the steps, 1_Pooling/config.json says which pooling,
sentence_bert_config.json how many tokens of a text are taken.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.folder import ModelFolder

MODULES: Final = "modules.json"
OWN: Final = "own"
"""The model itself gives one vector for a text (CLIP's projection)."""

_FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_LARGEST_LENGTH: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """What a model's embeddings are: `dimensions` numbers of at most `max_tokens` tokens, pooled by `pooling`."""

    dimensions: int
    max_tokens: int
    pooling: str


def embedding_shape(folder: ModelFolder) -> EmbeddingShape:
    """From the folder's files alone. Raises `BAD_MODEL_FILE`, and `UNSUPPORTED` for a step that is not known here."""
    text = folder.text_config()
    positions = _positions(folder, text)
    if folder.model_type == "clip":
        dimensions = _integer(folder.config, "projection_dim") or _integer(text, "projection_dim")
        return EmbeddingShape(_wanted(folder, "projection_dim", dimensions), positions, OWN)
    dimensions = _wanted(folder, "hidden_size", _integer(text, "hidden_size") or _integer(text, "dim"))
    pooling_folder = _pooling_folder(folder)
    if pooling_folder is None:
        return EmbeddingShape(dimensions, positions, "mean")
    limit = _integer(folder.record("sentence_bert_config.json") or {}, "max_seq_length") or positions
    return EmbeddingShape(dimensions, min(limit, positions), _pooling(folder, pooling_folder))


def _positions(folder: ModelFolder, text: Mapping[str, Any]) -> int:
    positions = _wanted(folder, "max_position_embeddings", _integer(text, "max_position_embeddings"))
    if folder.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        padding = text.get("pad_token_id")
        positions -= max(2, padding + 1 if type(padding) is int else 0)  # they begin behind the padding's own
    tokenizer = folder.record("tokenizer_config.json") or {}
    return min(positions, _integer(tokenizer, "model_max_length") or positions)


def _pooling_folder(folder: ModelFolder) -> str | None:
    """Where the pooling's configuration lies; None for a model without the files of sentence-transformers."""
    path = folder.path / MODULES
    if not path.is_file():
        return None
    found: str | None = None
    for module in _modules(folder):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            found = str(module.get("path", ""))
        elif kind not in ("Transformer", "Normalize"):
            raise failure(
                Code.UNSUPPORTED,
                f"{path} has the step {module.get('type')!r}; known are Transformer, Pooling and Normalize",
                argument="model",
            )
    if found is None or ".." in found or found.startswith("/"):
        raise failure(Code.BAD_MODEL_FILE, f"{path} names no folder of a Pooling step", phase="load")
    return found


def _modules(folder: ModelFolder) -> list[Mapping[str, Any]]:
    try:
        modules: Any = json.loads((folder.path / MODULES).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise failure(Code.BAD_MODEL_FILE, f"{folder.path / MODULES} is no JSON: {error}", phase="load") from None
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in cast("list[Any]", modules)):
        raise failure(Code.BAD_MODEL_FILE, f"{folder.path / MODULES} holds no list of records", phase="load")
    return cast("list[Mapping[str, Any]]", modules)


def _pooling(folder: ModelFolder, place: str) -> str:
    name = f"{place}/config.json"
    config = folder.record(name)
    if config is None:
        raise failure(Code.BAD_MODEL_FILE, f"{folder.path} lacks {name}, which {MODULES} names", phase="load")
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        modes = [{"lasttoken": "last"}.get(mode, mode)]
    else:
        modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        modes = [_FLAGS.get(key, key) for key in modes]
    if len(modes) != 1 or modes[0] not in _FLAGS.values():
        raise failure(
            Code.UNSUPPORTED,
            f"{folder.path / name} asks for the pooling {' and '.join(modes) or 'none'}; known are mean, cls and last",
            argument="model",
        )
    return modes[0]


def _integer(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    return value if type(value) is int and 0 < value <= _LARGEST_LENGTH else None


def _wanted(folder: ModelFolder, name: str, value: int | None) -> int:
    if value is None:
        raise failure(Code.BAD_MODEL_FILE, f"{folder.path / 'config.json'} has no sound {name}", phase="load")
    return value
