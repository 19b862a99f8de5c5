"""Makes a transformers folder of a llama model from a GGUF file with Q4_1, Q8_0, F16 or F32 tensors.

usage: llama_from_gguf.py FILE.gguf OUT_FOLDER

The file's rows are ggml's: a block of 32 values is a scale (and for Q4_1 a minimum) in float16 and the values in 4 or 8
bits. llama.cpp keeps the rows of the query's and the key's weights in another order than transformers.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cartdeck_modelkit.gguf.header import Header, Tensor, read_header

LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def values_of(data: bytes, tensor: Tensor) -> Any:
    """The tensor's values as float32."""
    kind, shape = tensor.type_name, tuple(reversed(tensor.shape))
    if kind in ("F32", "F16"):
        return np.frombuffer(data, "<f4" if kind == "F32" else "<f2").astype("<f4").reshape(shape)
    if kind == "Q8_0":
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("values", "i1", 32)]))
        return (blocks["values"] * blocks["scale"].astype("<f4")[:, None]).reshape(shape)
    assert kind == "Q4_1", f"{tensor.name} is {kind}"
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("least", "<f2"), ("values", "u1", 16)]))
    values = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1).astype("<f4")
    return (values * blocks["scale"].astype("<f4")[:, None] + blocks["least"].astype("<f4")[:, None]).reshape(shape)


def read_weights(header: Header, heads: dict[str, int]) -> dict[str, torch.Tensor]:
    """The tensors under transformers' names."""
    found: dict[str, torch.Tensor] = {}
    with header.path.open("rb") as file:
        for tensor in header.tensors:
            file.seek(header.data_offset + tensor.offset)
            values = values_of(file.read(tensor.size_bytes or 0), tensor)
            stem = tensor.name.removesuffix(".weight")
            if stem.startswith("blk."):
                _, layer, part = stem.split(".")
                if part in heads:
                    rows, width = values.shape
                    parted = values.reshape(heads[part], rows // heads[part] // 2, 2, width)
                    values = parted.swapaxes(1, 2).reshape(rows, width)
                name = f"model.layers.{layer}.{LAYER[part]}"
            else:
                name = WHOLE[stem]
            found[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(values))
    return found


def write_tokenizer(header: Header, folder: Path) -> None:
    """GPT-2's kind, digits one by one, as SmolLM has it."""
    tokens = [token.decode() for token in header.strings("tokenizer.ggml.tokens")]
    merges = [tuple(merge.decode().split(" ")) for merge in header.strings("tokenizer.ggml.merges")]
    model = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = list(itertools.takewhile(lambda token: len(token) > 1, tokens))  # they come before the letters
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {name: tokens[header.integer(f"tokenizer.ggml.{name}_token_id") or 0] for name in ("bos", "eos")}
    config = {f"{name}_token": token for name, token in ends.items()}
    config["chat_template"] = header.text("tokenizer.chat_template") or ""
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    header = read_header(source)

    def number(name: str) -> Any:
        return header.metadata[f"llama.{name}"]

    heads = {"attn_q": number("attention.head_count"), "attn_k": number("attention.head_count_kv")}
    weights = read_weights(header, heads)
    config = transformers.LlamaConfig(
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=number("context_length"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_theta=number("rope.freq_base"),
        tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=header.integer("tokenizer.ggml.bos_token_id"),
        eos_token_id=header.integer("tokenizer.ggml.eos_token_id"),
        pad_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    model.save_pretrained(folder)
    write_tokenizer(header, folder)


if __name__ == "__main__":
    main()
