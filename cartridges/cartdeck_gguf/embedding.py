"""Owns the making of vectors: a model loaded for it, texts cut to what it sees, one vector read for each.

It does not know requests or progress. Everything here runs on the thread that owns the model. Three things that end
the process in the engine's own high-level class are kept away: a text without tokens, vectors per token (NONE), and
scores read as vectors (RANK).
"""

import array
import ctypes
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cartdeck_gguf.abort_flag import AbortFlag
from cartdeck_gguf.info import count_tensor_types, main_tensor_type
from cartdeck_gguf.loading import import_engine, native_log, own_context
from cartdeck_gguf.memory_plan import LARGEST_UNFUSED_VECTORS
from cartdeck_gguf.model_kind import check_is_model
from cartdeck_gguf.native_log import Listener
from cartdeck_gguf.pooling import Pooling
from cartdeck_gguf.shards import read_model
from cartdeck_gguf.soundness import check_sound
from cartdeck_gguf.tokenizer import Tokenizer
from cartdeck_gguf.vocabulary import read_vocabulary
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.machine import default_threads
from cartdeck_modelkit.refusal import blaming
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf import llama

BATCH_TOKENS: Final = 512
"""How many tokens are computed together: enough to fill the processor, and their square is still small."""

MOST_TEXTS: Final = 32
"""How many texts one batch has at most: each is a sequence of the context."""

LONGEST_TEXT_TOKENS: Final = 32_768
Vector: TypeAlias = "array.array[float]"

_ABORTED: Final = 2
_CAPACITY_STEP: Final = 256
"""The engine aborts where its capacity cannot be shared out evenly among the sequences."""

_EVERY_LAYER: Final = 0x7FFF_FFFF


def check_embedder(path: Path) -> list[Header]:
    """The headers of the model at `path`, once it is known to be whole and no projector or adapter.

    Raises what `read_model` and `check_sound` raise, and `BAD_MODEL_FILE` for what is no model.
    """
    with blaming("model"):
        headers = read_model(path)
        check_is_model(headers[0], wanted="a model that can embed")
        check_sound(headers[0])
    return headers


def longest_text(header: Header) -> int:
    """How many tokens of one text the model sees."""
    return min(own_context(header), LONGEST_TEXT_TOKENS)


def dimensions_of(header: Header) -> int | None:
    """How many numbers a vector has; None where the file does not say."""
    architecture = header.architecture
    return header.integer(f"{architecture}.embedding_length_out") or header.integer(f"{architecture}.embedding_length")


class Embedder:
    """A model that makes vectors. One context is kept, made anew for another pooling or a longer text."""

    def __init__(
        self,
        headers: list[Header],
        *,
        threads: int,
        gpu_layers: int,
        listener: Listener,
        on_progress: Callable[[float], bool],
        weights: "llama.Model | None" = None,
    ) -> None:
        """Loads the model that `check_embedder` found, or uses its `weights` where they are in memory already.

        Raises what `read_vocabulary` and `load_failure` raise.
        """
        self.header = headers[0]
        vocabulary = read_vocabulary(self.header)
        engine = import_engine()
        native_log.begin_section(listener)
        can_use_gpu = engine.can_use_gpu()
        layers = (_EVERY_LAYER if gpu_layers < 0 else gpu_layers) if can_use_gpu else 0
        self._is_borrowed = weights is not None
        self._model = weights or engine.Model(
            self.header.path, log=native_log, gpu_layers=layers, on_progress=on_progress
        )
        self._native: Any = engine.NATIVE
        self.tokenizer = Tokenizer(self._model, vocabulary)
        self.engine_version: str = engine.VERSION
        self.device = "gpu" if layers else "cpu"
        self.dtype = main_tensor_type(count_tensor_types(headers))
        self.threads = threads or default_threads()
        self.dimensions = int(self._native.llama_model_n_embd_out(self._model.handle))
        self.max_tokens = longest_text(self.header)
        self._context: Any = None
        self._batch: Any = None
        self._made_for = (Pooling.NONE, 0)
        self._ask_flag = ctypes.cast(ctypes.CDLL(None).strlen, self._native.ggml_abort_callback)

    def prepare(self, text: str, *, truncate: str, index: int) -> tuple[list[int], bool]:
        """The ids of `text` as they are computed, and whether `truncate` ("start", "end") cut it.

        Raises `EMPTY_INPUT` for a text without tokens of its own, `CONTEXT_OVERFLOW` for one that is too long where
        `truncate` is "error", both with the text's `index`.
        """
        details = {"index": index}
        bare = self.tokenizer.encode(text, adds_special=False, reads_special=False)
        if not bare:
            message = f"the text at index {index} is empty; an empty text has no meaning to embed"
            raise failure(Code.EMPTY_INPUT, message, argument="texts", phase="inference", details=details)
        whole = self.tokenizer.encode(text, adds_special=True, reads_special=False)
        if len(whole) <= self.max_tokens:
            return whole, False
        if truncate == "error":
            raise failure(
                Code.CONTEXT_OVERFLOW,
                f"the text at index {index} has {len(whole):,} tokens, and this model sees {self.max_tokens:,}; "
                "shorten it, or let truncate cut its start or end",
                argument="texts",
                phase="inference",
                details={**details, "tokens": len(whole), "max_tokens": self.max_tokens},
            )
        before, after = _ends(whole, bare)
        room = max(1, self.max_tokens - len(before) - len(after))
        return [*before, *(bare[-room:] if truncate == "start" else bare[:room]), *after], True

    def embed(self, texts: Sequence[list[int]], pooling: Pooling, flag: AbortFlag) -> list[Vector]:
        """One vector for each of at most `MOST_TEXTS` texts, as they come out of the model: not of length 1.

        Raises `CANCELLED` within milliseconds of `flag.set()`, `OUT_OF_MEMORY`, `DEVICE_FAULT`, `NON_FINITE_OUTPUT`.
        """
        native, total = self._native, sum(map(len, texts))
        self._make_context(pooling, total)
        native.llama_set_abort_callback(self._context, self._ask_flag, ctypes.c_void_p(flag.address))
        if flag.is_set:
            raise failure(Code.CANCELLED, "given up by the caller", phase="inference")
        memory = native.llama_get_memory(self._context)
        if memory:
            native.llama_memory_clear(memory, True)
        self._fill(texts)
        compute = native.llama_encode if native.llama_model_has_encoder(self._model.handle) else native.llama_decode
        status = compute(self._context, self._batch)
        if status == _ABORTED:
            raise failure(Code.CANCELLED, "given up by the caller", phase="inference")
        if status:
            raise failure(
                Code.DEVICE_FAULT,
                f"the engine failed to compute {len(texts)} texts of {total} tokens (it gave {status})",
                phase="inference",
                details={"log": native_log.tail(), "status": status},
            )
        return [self._read(sequence) for sequence in range(len(texts))]

    def _fill(self, texts: Sequence[list[int]]) -> None:
        batch, at = self._batch, 0
        for sequence, ids in enumerate(texts):
            for position, token in enumerate(ids):
                batch.token[at], batch.pos[at] = token, position
                batch.n_seq_id[at], batch.logits[at] = 1, 1
                batch.seq_id[at][0] = sequence
                at += 1
        batch.n_tokens = at

    def _read(self, sequence: int) -> Vector:
        pointer = self._native.llama_get_embeddings_seq(self._context, sequence)
        if not pointer:
            raise failure(Code.DEVICE_FAULT, "the engine gave no vector for a text", phase="inference")
        vector = array.array("f", ctypes.string_at(pointer, 4 * self.dimensions))
        if not all(map(math.isfinite, vector)):
            message = f"{self.header.path.name} gave numbers that are not finite; its file may be damaged"
            raise failure(Code.NON_FINITE_OUTPUT, message, phase="inference")
        return vector

    def _make_context(self, pooling: Pooling, tokens: int) -> None:
        """Sees to a context for this pooling in which so many tokens can be computed at once."""
        capacity = -(-max(BATCH_TOKENS, tokens) // _CAPACITY_STEP) * _CAPACITY_STEP
        if self._context is not None and self._made_for[0] is pooling and self._made_for[1] >= capacity:
            return
        self._free_context()
        native = self._native
        params = native.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = capacity
        params.n_seq_max = MOST_TEXTS
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = self.threads
        params.embeddings = True
        params.pooling_type = int(pooling)
        if capacity <= LARGEST_UNFUSED_VECTORS:
            params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = native.llama_init_from_model(self._model.handle, params)
        if not self._context:
            self._context = None
            raise failure(
                Code.OUT_OF_MEMORY,
                f"the engine cannot make a context of {capacity:,} tokens for {self.header.path.name}",
                phase="load",
                details={"log": native_log.tail(), "context_size": capacity},
            )
        self._batch = native.llama_batch_init(capacity, 0, 1)
        self._made_for = (pooling, capacity)

    def _free_context(self) -> None:
        if self._context is not None:
            self._native.llama_batch_free(self._batch)
            self._native.llama_free(self._context)
            self._context = None

    def close(self) -> None:
        """Frees the context, then the weights, unless they are another's."""
        self._free_context()
        if not self._is_borrowed:
            self._model.close()


def unit(vector: Vector) -> Vector:
    """The vector scaled to length 1; one of zeros stays what it is."""
    length = math.sqrt(math.fsum(one * one for one in vector))
    return array.array("f", (one / length for one in vector)) if length > 0 else vector


def _ends(whole: Sequence[int], bare: Sequence[int]) -> tuple[list[int], list[int]]:
    """What the metadata puts before and after the text's own tokens."""
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return list(whole[:start]), list(whole[start + len(bare) :])
    return [], []
