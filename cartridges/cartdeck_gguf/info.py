"""Owns what `model-info` says of a GGUF model: a record made from the headers of its files alone.

It does not know llama.cpp and loads no weights.
"""

from collections.abc import Sequence
from typing import Any

from cartdeck_gguf.pooling import own_pooling
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import cache_bytes_per_token, estimate_with_vocabulary, vocabulary_size

_TOKEN_KEY_START, _TOKEN_KEY_END = "tokenizer.ggml.", "_token_id"
_RENAMED_TOKENS = {"seperator": "separator"}


def describe_model(headers: Sequence[Header], *, context_size: int = 0) -> dict[str, Any]:
    """The record of the model in the files of `headers`, the first one first.

    `memory` is for a context of `context_size` tokens, 0 being the model's own. `quantization` is the type that holds
    most of the weights, with what there is of each type.
    """
    first = headers[0]
    context_length = first.integer(f"{first.architecture}.context_length")
    types = count_tensor_types(headers)
    weights_bytes = sum(kind["size_bytes"] for kind in types.values())
    estimate = estimate_with_vocabulary(first, context_size or context_length or 0, weights_bytes=weights_bytes)
    return {
        "format": "gguf",
        "format_version": first.version,
        "kind": first.text("general.type") or "model",
        "name": first.text("general.name"),
        "license": first.text("general.license"),
        "architecture": first.architecture,
        "parameters": sum(tensor.elements for header in headers for tensor in header.tensors),
        "layers": first.integer(f"{first.architecture}.block_count"),
        "embedding_length": first.integer(f"{first.architecture}.embedding_length"),
        "context_length": context_length,
        "vocabulary_size": vocabulary_size(first),
        "tokenizer": first.text("tokenizer.ggml.model"),
        "quantization": {"name": main_tensor_type(types), "tensor_types": types},
        "template": first.text("tokenizer.chat_template"),
        "special_tokens": _special_tokens(first),
        "adds_bos": first.metadata.get("tokenizer.ggml.add_bos_token"),
        "adds_eos": first.metadata.get("tokenizer.ggml.add_eos_token"),
        "pooling": _pooling(first),
        "is_causal": first.metadata.get(f"{first.architecture}.attention.causal") is not False,
        "memory": {
            "total_bytes": estimate.total_bytes,
            "context_size": estimate.context_size,
            "weights_bytes": estimate.weights_bytes,
            "cache_bytes": estimate.cache_bytes,
            "cache_bytes_per_token": cache_bytes_per_token(first),
            "compute_bytes": estimate.compute_bytes,
            "vocabulary_bytes": estimate.vocabulary_bytes,
        },
        "files": [{"path": str(header.path), "size_bytes": header.size_bytes} for header in headers],
    }


def count_tensor_types(headers: Sequence[Header]) -> dict[str, dict[str, int]]:
    """By tensor type: how many `tensors`, how many `parameters` in them, and their `size_bytes`."""
    types: dict[str, dict[str, int]] = {}
    for tensor in (tensor for header in headers for tensor in header.tensors):
        kind = types.setdefault(tensor.type_name, {"tensors": 0, "parameters": 0, "size_bytes": 0})
        kind["tensors"] += 1
        kind["parameters"] += tensor.elements
        kind["size_bytes"] += tensor.size_bytes or 0
    return dict(sorted(types.items()))


def main_tensor_type(types: dict[str, dict[str, int]]) -> str | None:
    """The type that holds most of the parameters; None for a file without tensors."""
    return max(types, key=lambda name: types[name]["parameters"], default=None)


def _pooling(header: Header) -> str | None:
    own = own_pooling(header) if f"{header.architecture}.pooling_type" in header.metadata else None
    return None if own is None else own.name.lower()


def _special_tokens(header: Header) -> dict[str, dict[str, Any]]:
    ids = {
        key.removeprefix(_TOKEN_KEY_START).removesuffix(_TOKEN_KEY_END): value
        for key, value in header.metadata.items()
        if key.startswith(_TOKEN_KEY_START) and key.endswith(_TOKEN_KEY_END) and isinstance(value, int)
    }
    texts = header.strings_at("tokenizer.ggml.tokens", sorted(set(ids.values())))
    return {_RENAMED_TOKENS.get(name, name): {"id": value, "text": texts.get(value)} for name, value in ids.items()}
