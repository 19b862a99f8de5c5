"""Turns the folder of a plain BERT sentence model (all-MiniLM-L6-v2) into an embedding GGUF; needs numpy alone.

    python minilm_to_gguf.py MODEL_FOLDER OUT.gguf

Matrices become float16, the rest stays float32. Source of the names: llama.cpp's architecture `bert`.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
F32, F16 = 0, 1
ALIGNMENT = 32
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
SPECIAL = {"[PAD]": "padding", "[UNK]": "unknown", "[CLS]": "bos", "[SEP]": "eos", "[MASK]": "mask"}
EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def read_safetensors(path: Path) -> dict[str, numpy.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    tensors: dict[str, numpy.ndarray] = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            values = numpy.frombuffer(data, "<f4", (end - start) // 4, 8 + length + start)
            tensors[name.removeprefix("bert.")] = values.reshape(entry["shape"])
    return tensors


def gguf_name(name: str) -> str | None:
    """The tensor's name in llama.cpp; None for one that it has no use for."""
    stem, _, suffix = name.rpartition(".")
    if stem in EMBEDDINGS:
        return f"{EMBEDDINGS[stem]}.{suffix}"
    if not stem.startswith("encoder.layer."):
        return None
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{LAYER[rest]}.{suffix}"


def metadata_of(config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    kinds = [
        UNKNOWN if word == "[UNK]" else CONTROL if word in SPECIAL else UNUSED if word.startswith("[unused") else NORMAL
        for word in words
    ]
    tokens = [
        word if kind != NORMAL else word.removeprefix("##") if word.startswith("##") else "\u2581" + word
        for word, kind in zip(words, kinds, strict=True)
    ]
    metadata: dict[str, Any] = {
        "general.architecture": "bert",
        "general.type": "model",
        "general.name": "all-MiniLM-L6-v2",
        "general.license": "apache-2.0",
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.seperator_token_id": words.index("[SEP]"),
    }
    for word, name in SPECIAL.items():
        metadata[f"tokenizer.ggml.{name}_token_id"] = words.index(word)
    return metadata


def packed_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed_value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + packed_string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(packed_string, value))
        case _:
            return struct.pack("<IIQ", ARRAY, INT32, len(value)) + struct.pack(f"<{len(value)}i", *value)


def convert(folder: Path, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    words = (folder / "vocab.txt").read_text("utf-8").split("\n")
    metadata = metadata_of(config, words[:-1] if not words[-1] else words)
    table, chunks, offset = b"", [], 0
    count = 0
    for name, values in read_safetensors(folder / "model.safetensors").items():
        renamed = gguf_name(name)
        if renamed is None:
            continue
        is_matrix = values.ndim > 1 and not renamed.startswith(("token_types", "position_embd"))
        data = values.astype("<f2" if is_matrix else "<f4").tobytes()
        table += packed_string(renamed) + struct.pack("<I", values.ndim)
        table += struct.pack(f"<{values.ndim}Q", *reversed(values.shape))
        table += struct.pack("<IQ", F16 if is_matrix else F32, offset)
        chunks.append(data + b"\0" * (-len(data) % ALIGNMENT))
        offset += len(chunks[-1])
        count += 1
    pairs = b"".join(packed_string(key) + packed_value(value) for key, value in metadata.items())
    header = b"GGUF" + struct.pack("<IQQ", 3, count, len(metadata)) + pairs + table
    out.write_bytes(header + b"\0" * (-len(header) % ALIGNMENT) + b"".join(chunks))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
