"""Makes a transformers folder of a Whisper model from a CTranslate2 one (model.bin, config.json, tokenizer.json).

usage: whisper_from_ct2.py CT2_FOLDER OUT_FOLDER

model.bin: version, name, revision, then each variable as name, shape, type and data; at the end names for variables
that are the same as others. Integers are little-endian.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


class Variables:
    """The variables of a model.bin, as float32 tensors."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0
        self.arrays: dict[str, Any] = {}
        self._number("I")
        self._text()
        self._number("I")
        for _ in range(self._number("I")):
            name = self._text()
            shape = [self._number("I") for _ in range(self._number("B"))]
            kind, size = TYPES[self._number("B")], self._number("I")
            self.arrays[name] = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, self._place).reshape(shape)
            self._place += size
        for _ in range(self._number("I")):
            alias = self._text()
            self.arrays[alias] = self.arrays[self._text()]

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self.arrays[name], dtype=np.float32))

    def layers(self, part: str) -> int:
        names = {name.split("/")[1] for name in self.arrays if name.startswith(f"{part}/layer_")}
        return len({name for name in names if "norm" not in name})

    def _number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._place)
        self._place += struct.calcsize(kind)
        return value

    def _text(self) -> str:
        size = self._number("H")
        self._place += size
        return self._data[self._place - size : self._place].rstrip(b"\0").decode()


def weights(found: Variables) -> dict[str, torch.Tensor]:
    """The tensors under the names of transformers."""
    state: dict[str, torch.Tensor] = {}

    def linear(target: str, source: str) -> None:
        state[f"{target}.weight"], state[f"{target}.bias"] = found[f"{source}/weight"], found[f"{source}/bias"]

    def norm(target: str, source: str) -> None:
        state[f"{target}.weight"], state[f"{target}.bias"] = found[f"{source}/gamma"], found[f"{source}/beta"]

    def split(target: str, source: str, names: str) -> None:
        parts = len(names)
        for name, weight, bias in zip(
            names, found[f"{source}/weight"].chunk(parts), found[f"{source}/bias"].chunk(parts), strict=True
        ):
            state[f"{target}.{name}_proj.weight"] = weight.clone()
            if name != "k":
                state[f"{target}.{name}_proj.bias"] = bias.clone()

    for number in (1, 2):
        linear(f"model.encoder.conv{number}", f"encoder/conv{number}")
    for part in ("encoder", "decoder"):
        state[f"model.{part}.embed_positions.weight"] = found[f"{part}/position_encodings/encodings"]
        norm(f"model.{part}.layer_norm", f"{part}/layer_norm")
        for index in range(found.layers(part)):
            target, source = f"model.{part}.layers.{index}", f"{part}/layer_{index}"
            split(f"{target}.self_attn", f"{source}/self_attention/linear_0", "qkv")
            linear(f"{target}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{target}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            if part == "decoder":
                linear(f"{target}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                split(f"{target}.encoder_attn", f"{source}/attention/linear_1", "kv")
                linear(f"{target}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{target}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
            linear(f"{target}.fc1", f"{source}/ffn/linear_0")
            linear(f"{target}.fc2", f"{source}/ffn/linear_1")
            norm(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
    state["model.decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    return state


def settings(source: Path, *, is_multilingual: bool) -> dict[str, Any]:
    """What generation_config.json holds."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    added = json.loads((source / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    tokens = {one["content"]: one["id"] for one in added}
    end, start = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    record = {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        "decoder_start_token_id": start,
        "max_length": 448,
        "no_timestamps_token_id": tokens["<|notimestamps|>"],
        "prev_sot_token_id": tokens["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "suppress_tokens": config.get("suppress_ids", []),
        "begin_suppress_tokens": config.get("suppress_ids_begin", [220, end]),
        "alignment_heads": config.get("alignment_heads"),
        "is_multilingual": is_multilingual,
        "return_timestamps": False,
    }
    if is_multilingual:
        languages = set(config["lang_ids"])
        record["task"] = "transcribe"
        record["lang_to_id"] = {name: token for name, token in tokens.items() if token in languages}
        record["task_to_id"] = {name: tokens[f"<|{name}|>"] for name in ("transcribe", "translate")}
    return record


def convert(source: Path, target: Path) -> None:
    found = Variables((source / "model.bin").read_bytes())
    state = weights(found)
    size, width = state["model.decoder.embed_tokens.weight"].shape
    is_multilingual = size >= 51865
    said = settings(source, is_multilingual=is_multilingual)
    config = transformers.WhisperConfig(
        vocab_size=size,
        d_model=width,
        num_mel_bins=state["model.encoder.conv1.weight"].shape[1],
        decoder_start_token_id=said["decoder_start_token_id"],
        **{f"{part}_layers": found.layers(part) for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": width // 64 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 4 * width for part in ("encoder", "decoder")},
        **{name: said[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    model = transformers.WhisperForConditionalGeneration(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"proj_out.weight"}, missing
    assert not unexpected, unexpected
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(**said)
    model.save_pretrained(target)
    names = ("unk_token", "bos_token", "eos_token", "pad_token")
    tokenizer = transformers.WhisperTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"), **dict.fromkeys(names, "<|endoftext|>")
    )
    extractor = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(target)


if __name__ == "__main__":
    torch.set_num_threads(1)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
