"""Owns what `model-info` says of a model's folder: a record made from its files' headers alone.

It does not know torch and loads no weights.
"""

from typing import Any

from cartdeck_torch.family import tasks_of
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.memory_plan import plan_memory
from cartdeck_torch.settings import LoadSettings


def describe_folder(folder: ModelFolder) -> dict[str, Any]:
    """The record. `quantization` is the type that most weights are stored in, `tensor_types` counts each type."""
    text = folder.text_config()
    types: dict[str, dict[str, int]] = {}
    for entries in folder.weights.values():
        for entry in entries.values():
            kind = types.setdefault(entry.dtype, {"tensors": 0, "parameters": 0, "size_bytes": 0})
            kind["tensors"] += 1
            kind["parameters"] += entry.elements
            kind["size_bytes"] += entry.size_bytes
    total_bytes = plan_memory(folder, LoadSettings())
    return {
        "format": "safetensors",
        "kind": "model",
        "name": folder.name,
        "architecture": folder.model_type,
        "made_for": [task.value for task in tasks_of(folder)],
        "parameters": sum(kind["parameters"] for kind in types.values()),
        "layers": _first(text, "num_hidden_layers", "n_layers", "encoder_layers"),
        "embedding_length": _first(text, "hidden_size", "dim", "d_model"),
        "context_length": _first(text, "max_position_embeddings", "max_target_positions"),
        "vocabulary_size": _first(text, "vocab_size"),
        "quantization": {"name": folder.main_dtype, "tensor_types": dict(sorted(types.items()))},
        "template": _template(folder),
        "memory": {"total_bytes": total_bytes, "weights_bytes": folder.size_bytes},
        "files": [{"path": str(path), "size_bytes": path.stat().st_size} for path in folder.weights],
    }


def _first(record: Any, *names: str) -> int | None:
    values = (record.get(name) for name in names)
    return next((value for value in values if type(value) is int), None)


def _template(folder: ModelFolder) -> str | None:
    file = folder.path / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8", errors="replace")
    template = (folder.record("tokenizer_config.json") or {}).get("chat_template")
    return template if isinstance(template, str) else None
