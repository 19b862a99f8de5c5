"""Owns how a model's memory grows with its context: from a GGUF header, or from a transformers configuration.

It does not know where either was read, nor how much memory there is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import SLICE_TOKENS, MemoryEstimate, estimate_with_vocabulary

LARGEST_CONTEXT: Final = 16_777_216
_VALUE_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_GENERATORS: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForImageTextToText")


@dataclass(frozen=True, slots=True)
class Growth:
    """What a model takes: `estimate(context_size, weights_bytes)`, both as given, in tokens and bytes.

    `own_context` is the context that the model was made for, None where it does not say.
    """

    own_context: int | None
    estimate: Callable[[int, int], MemoryEstimate]
    architecture: str | None = None
    """As the file names it."""


def growth_of_header(header: Header) -> Growth:
    """The growth of a GGUF model, from the header of its first file."""
    own = header.integer(f"{header.architecture}.context_length")
    return Growth(
        None if own is None else min(max(own, 1), LARGEST_CONTEXT),
        lambda context_size, weights_bytes: estimate_with_vocabulary(header, context_size, weights_bytes=weights_bytes),
        header.architecture or None,
    )


def growth_of_config(config: Mapping[str, Any]) -> Growth:
    """The growth of a transformers model, from its config.json. What the file does not say counts as nothing.

    The terms: a key and a value of each layer and head for each token, where the model makes text; logits of the
    vocabulary and the widest activation for a slice of the prompt.
    """
    text = _text_part(config)
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    heads = _number(text, "num_attention_heads", "n_head", "num_heads", "decoder_attention_heads")
    cache_heads = _number(text, "num_key_value_heads") or heads
    head_width = _number(text, "head_dim", "d_kv") or (hidden // heads if heads else 0)
    inner = _number(text, "intermediate_size", "n_inner", "d_ff", "decoder_ffn_dim") or 4 * hidden
    vocabulary = _number(text, "vocab_size")
    own = _number(text, "max_position_embeddings", "n_positions", "max_target_positions", "seq_length")
    value_bytes = _VALUE_BYTES.get(str(_first(text, config, "dtype") or _first(text, config, "torch_dtype")), 4)
    cached = 2 * layers * cache_heads * head_width * value_bytes if _makes_text(config) else 0

    def estimate(context_size: int, weights_bytes: int) -> MemoryEstimate:
        rows = min(SLICE_TOKENS, context_size)
        widest = max(vocabulary if cached else 0, heads * context_size) + 2 * hidden + inner
        return MemoryEstimate(context_size, weights_bytes, context_size * cached, rows * widest * 4)

    named = config.get("model_type")
    return Growth(min(own, LARGEST_CONTEXT) or None, estimate, named if isinstance(named, str) else None)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model, where others, as of images, stand beside it."""
    for name in ("text_config", "llm_config", "language_config", "decoder"):
        part = config.get(name)
        if isinstance(part, dict):
            return cast("dict[str, Any]", part)
    return config


def _makes_text(config: Mapping[str, Any]) -> bool:
    named: Any = config.get("architectures")
    names = [str(name) for name in cast("list[Any]", named)] if isinstance(named, list) else []
    return any(name.endswith(_GENERATORS) for name in names) or config.get("is_decoder") is True


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The first of the names that holds a whole number above 0; 0 where none does."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _first(text: Mapping[str, Any], config: Mapping[str, Any], name: str) -> Any:
    return text.get(name) or config.get(name)
