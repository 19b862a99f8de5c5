"""Owns the estimate of the memory that a model takes with a context of a given size, from its header alone.

It does not know how much memory there is. The terms follow what llama.cpp allocates: weights, what is kept of the
tokens seen, the buffers of a computation. For models of every kind that a test builds they come within a tenth of it.
"""

from dataclasses import dataclass, replace
from typing import Final

from cartdeck_modelkit.gguf.header import ArrayValue, Header
from cartdeck_modelkit.gguf.hyperparameters import Hyperparameters
from cartdeck_modelkit.gguf.remembered import remembered

SLICE_TOKENS: Final = 512
"""How many tokens are computed at once, at most."""
MOST_TEXTS: Final = 64
"""How many texts a context has room for."""
MOST_TEXTS_WITH_STATE: Final = 4
"""The same for a model that keeps a state for each text that there may be, whether it is made or not."""

PROJECTOR_ARCHITECTURE: Final = "clip"

_CELL_STEP: Final = 256
"""The engine rounds a context up to a multiple of it."""
_NUMBER_BYTES: Final = 4
_WORD_BYTES: Final = 152
"""What the engine takes for a token of the vocabulary: its text three times, and a place in a table. Measured for
vocabularies of 20,000 to 49,152."""
_MERGE_BYTES: Final = 190
"""The same for a pair of tokens that are merged."""
_MASK_BYTES: Final = 2
_BLOCK_WIDTHS: Final = 4
"""How many rows as wide as the model a block has beside its widest part: what came in, normed, added."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a model takes with a context of `context_size` tokens."""

    context_size: int
    weights_bytes: int
    cache_bytes: int
    """What is kept of the tokens seen: keys and values, states."""
    compute_bytes: int
    """Buffers of a computation, and the numbers that come out of it."""
    vocabulary_bytes: int = 0
    """Texts of tokens and what is merged, where they are counted: once for a model, always in the machine's memory."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes + self.vocabulary_bytes


def estimate_memory(
    header: Header, context_size: int, *, weights_bytes: int, texts: int = MOST_TEXTS
) -> MemoryEstimate:
    """What the model of `header`, all of whose files hold `weights_bytes` of tensors, takes with this context, which
    has room for so many `texts`."""
    if header.architecture == PROJECTOR_ARCHITECTURE:
        return MemoryEstimate(context_size, weights_bytes, 0, projector_compute_bytes(header))
    kept = remembered(header)
    texts = min(texts, MOST_TEXTS_WITH_STATE) if kept.bytes_per_text else texts
    tokens = max(context_size, texts)
    cells = -(-tokens // _CELL_STEP) * _CELL_STEP
    return MemoryEstimate(
        context_size=context_size,
        weights_bytes=weights_bytes,
        cache_bytes=cells * kept.bytes_per_token + texts * kept.bytes_per_text,
        compute_bytes=_compute_bytes(header, cells, rows=min(SLICE_TOKENS, tokens), texts=texts),
    )


def estimate_with_vocabulary(header: Header, context_size: int, *, weights_bytes: int) -> MemoryEstimate:
    """The same, with the vocabulary: all that a process holds of the model once it is loaded."""
    estimate = estimate_memory(header, context_size, weights_bytes=weights_bytes)
    return replace(estimate, vocabulary_bytes=vocabulary_bytes(header))


def cache_bytes_per_token(header: Header) -> int:
    """What one token takes in the key-value cache, over all layers; 0 for a model that has none."""
    return remembered(header).bytes_per_token


def largest_context(header: Header, *, limit: int, free_bytes: int) -> int:
    """The largest context, in steps of 256 tokens and at most `limit`, whose cache and buffers take `free_bytes`."""

    def fits(context_size: int) -> bool:
        estimate = estimate_memory(header, context_size, weights_bytes=0)
        return estimate.total_bytes <= free_bytes

    if fits(limit):
        return limit
    low, high = 0, limit // _CELL_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * _CELL_STEP) else (low, middle - 1)
    return low * _CELL_STEP


def projector_compute_bytes(header: Header) -> int:
    """What a vision projector needs beside its weights to see an image of the size that it was made for: its pixels,
    and the widest part of a block for each patch. Attention is fused. Where it takes a larger one, that needs more."""
    vision = Hyperparameters(header, prefix="clip.vision")
    size, patch = vision.number("image_size"), vision.number("patch_size")
    patches = (size // patch) ** 2 if patch else 0
    numbers = vision.number("feed_forward_length") + 3 * vision.number("embedding_length")
    return (patches * numbers + 3 * size * size) * _NUMBER_BYTES


def vocabulary_size(header: Header) -> int:
    """How many tokens the model's vocabulary has; 0 when the file has none."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayValue) else Hyperparameters(header).number("vocab_size")


def vocabulary_bytes(header: Header) -> int:
    """What the vocabulary takes in the machine's memory, wherever the weights are. `estimate_memory` leaves it out: it
    tells what the engine gives room to by its own account, and may be of a context alone."""
    merges = header.metadata.get("tokenizer.ggml.merges")
    pairs = merges.count if isinstance(merges, ArrayValue) else 0
    return vocabulary_size(header) * _WORD_BYTES + pairs * _MERGE_BYTES


def _compute_bytes(header: Header, cells: int, *, rows: int, texts: int) -> int:
    """What a slice of `rows` tokens needs at a time, the block or the logits; the masks of fused attention, which keeps
    no scores; and the logits of each text, which are copied out."""
    numbers = Hyperparameters(header)
    width, logits = numbers.number("embedding_length"), texts * vocabulary_size(header)
    masks = (2 if numbers.number("attention.sliding_window") else 1) if cache_bytes_per_token(header) else 0
    block = rows * _block_numbers(numbers) * _NUMBER_BYTES
    block += masks * rows * cells * _MASK_BYTES
    return max(block, (logits + rows * width) * _NUMBER_BYTES) + logits * _NUMBER_BYTES


def _block_numbers(numbers: Hyperparameters) -> int:
    """How many numbers a block keeps for one token, at most: the gate, what is gated and their product; a state-space
    layer's projections; or queries, rotated, and answers. Of experts, what goes in and comes out of each, weighed."""
    width, experts = numbers.number("embedding_length"), numbers.number("expert_used_count")
    of_experts = experts * numbers.number("expert_feed_forward_length")
    queries = numbers.number("attention.head_count") * numbers.number("attention.key_length")
    parts = (
        3 * of_experts or _feed_forward(numbers),
        5 * numbers.number("ssm.inner_size"),
        3 * queries,
    )
    return max(max(parts) + _BLOCK_WIDTHS * width, 2 * of_experts + (2 * experts + 1) * width)


def _feed_forward(numbers: Hyperparameters) -> int:
    inner = numbers.number("feed_forward_length")
    ways_in = [tensor for tensor in numbers.header.tensors if ".ffn_up." in tensor.name or ".ffn_gate." in tensor.name]
    is_gated = any(".ffn_gate." in tensor.name or tensor.shape[1:2] == (2 * inner,) for tensor in ways_in)
    return 3 * inner if is_gated or not ways_in else inner
