"""Owns the calls into llama.cpp: logs, loading a model, a context, decoding, sampling. The one module that imports it.

It does not know requests, prompts' limits, nor text as it streams. Nothing here is safe for two threads at once: one
thread owns a model and all that was made from it. The high-level class of llama-cpp-python is not used: it prints,
points the process's own descriptors elsewhere while it loads, and has no way to show or stop a load.
"""

# pyright: basic
# Reason: llama_cpp declares its functions by decorators and its pointers by types that exist for checkers alone.

import ctypes
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import llama_cpp
import numpy
from llama_cpp import llama_cpp as native
from llama_cpp import mtmd_cpp

from cartdeck_gguf.abort_flag import AbortFlag
from cartdeck_gguf.load_failure import load_failure
from cartdeck_gguf.native_log import NativeLog
from cartdeck_gguf.sampling import SamplingSettings
from cartdeck_protocol.errors import Code, failure

NATIVE: Any = native
"""llama.cpp's functions, for the modules that call one which this module has no name for."""
VISION: Any = mtmd_cpp
"""The same of libmtmd, which turns images into embeddings."""

LIBRARY: Final = "llama-cpp-python"
VERSION: Final = str(llama_cpp.__version__)
SLICE_TOKENS: Final = 512
"""How many tokens of a prompt go into one call of the engine."""

PENALTY_WINDOW: Final = 64
_COLDEST: Final = 1e-5
_PIECE_BYTES: Final = 256
_PART_CHARACTERS: Final = 32_768
_ABORTED: Final = 2
_NO_ROOM: Final = 1

# The GIL-free question of AbortFlag, as llama.cpp wants it: bool (*)(void *). The low byte of strlen's result is it.
_ask_flag = ctypes.cast(ctypes.CDLL(None).strlen, native.ggml_abort_callback)
_never = AbortFlag()
_log_callbacks: list[object] = []


class Decoded(Enum):
    """How a call of `Context.decode` ended."""

    DONE = "done"
    ABORTED = "aborted"
    NO_ROOM = "no room"


def begin(log: NativeLog) -> None:
    """Readies the engine, once in a process: every line of llama.cpp, ggml and mtmd goes to `log`, none elsewhere."""
    if _log_callbacks:
        return

    def on_line(level: int, text: bytes, _user_data: object) -> None:
        log.add(level, text.decode("utf-8", errors="replace"))

    callback, nothing = native.llama_log_callback(on_line), ctypes.c_void_p(None)
    native.llama_log_set(callback, nothing)
    mtmd_cpp.mtmd_log_set(callback, nothing)
    mtmd_cpp.mtmd_helper_log_set(callback, nothing)
    _log_callbacks.append(callback)  # the library keeps only its address
    native.llama_backend_init()


def can_use_gpu() -> bool:
    """Whether this build of the engine has a GPU that it can use."""
    return bool(native.llama_supports_gpu_offload())


class Model:
    """The weights and the vocabulary of one file. `close` frees them; a context is closed before its model."""

    def __init__(
        self,
        path: Path,
        *,
        log: NativeLog,
        gpu_layers: int = 0,
        on_progress: Callable[[float], bool] | None = None,
        has_weights: bool = True,
    ) -> None:
        """Loads `path`. `on_progress(fraction)` is called as tensors come; False gives the load up (CANCELLED).
        Without weights the vocabulary alone is loaded, and no context can be made.

        Raises what `load_failure` says.
        """
        params = native.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = not has_weights
        is_given_up = False

        def on_tensor(fraction: float, _user_data: object) -> bool:
            nonlocal is_given_up
            is_given_up = is_given_up or not (on_progress is None or on_progress(fraction))
            return not is_given_up

        callback = native.llama_progress_callback(on_tensor)
        params.progress_callback = callback
        self.path = path
        self._model: Any = native.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            if is_given_up:
                raise failure(Code.CANCELLED, "the load was given up", phase="load")
            raise load_failure(path, errors=log.errors(), tail=log.tail(), engine=f"{LIBRARY} {VERSION}")
        self._vocabulary: Any = native.llama_model_get_vocab(self._model)
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(_PIECE_BYTES)

    @property
    def handle(self) -> Any:
        """The engine's own pointer; None once it is closed."""
        return self._model

    @property
    def vocabulary(self) -> Any:
        """The engine's own pointer to the vocabulary, which lives as long as the model."""
        return self._vocabulary

    @property
    def is_generator(self) -> bool:
        """Whether the model continues a text: it has a decoder and needs no encoder before it."""
        return bool(native.llama_model_has_decoder(self._model)) and not native.llama_model_has_encoder(self._model)

    @property
    def vocabulary_size(self) -> int:
        return int(native.llama_vocab_n_tokens(self._vocabulary))

    @property
    def trained_context(self) -> int:
        """How many tokens the model was made to see."""
        return int(native.llama_model_n_ctx_train(self._model))

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a prompt. Names of special tokens in it count as those tokens; one beginning-of-text token
        comes first where the model's metadata asks for it, and is not put before one that is there already."""
        found = self._tokens(text)
        first: Any = native.llama_vocab_bos(self._vocabulary)
        if native.llama_vocab_get_add_bos(self._vocabulary) and first >= 0 and found[:1] != [first]:
            found.insert(0, first)
        return found

    def exceeds(self, text: str, tokens: int) -> bool:
        """Whether a long text has surely more than this many tokens: told from its parts, as far as needed.

        The tokenizer takes time by the square of what it is given where special tokens are many (20 s for 1 MB of
        them), and cannot be interrupted. A cut adds tokens, so parts count as half of what they have.
        """
        count = 0
        for start in range(0, len(text) if len(text) > _PART_CHARACTERS else 0, _PART_CHARACTERS):
            count += len(self._tokens(text[start : start + _PART_CHARACTERS]))
            if count > 2 * tokens:
                return True
        return False

    def _tokens(self, text: str) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        tokens = (native.llama_token * room)()
        count = native.llama_tokenize(self._vocabulary, data, len(data), tokens, room, False, True)
        if count < 0:
            raise failure(
                Code.HANDLER_FAILED, f"llama_tokenize gave {count} for {len(data):,} bytes", phase="inference"
            )
        return tokens[:count]

    def is_end(self, token: int) -> bool:
        """Whether the token ends the text."""
        return bool(native.llama_vocab_is_eog(self._vocabulary, token))

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to the text: b"" for one of control."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._read_piece(token)
        return found

    def _read_piece(self, token: int) -> bytes:
        size = native.llama_token_to_piece(self._vocabulary, token, self._buffer, len(self._buffer), 0, False)
        if size < 0:
            self._buffer = ctypes.create_string_buffer(-size)
            size = native.llama_token_to_piece(self._vocabulary, token, self._buffer, -size, 0, False)
        return self._buffer.raw[:size]

    def close(self) -> None:
        if self._model:
            native.llama_model_free(self._model)
            self._model = None


class Context:
    """One sequence of tokens that a model has seen, and the computation that goes on from it."""

    def __init__(
        self, model: Model, *, log: NativeLog, context_size: int, threads: int, is_fused: bool = False
    ) -> None:
        """`is_fused`: let the engine use its fused attention where it can, else never.

        Raises `OUT_OF_MEMORY` with the engine's last lines when the buffers cannot be had.
        """
        params = native.llama_context_default_params()
        params.n_ctx = context_size
        params.n_batch = params.n_ubatch = min(SLICE_TOKENS, context_size)
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = threads
        if not is_fused:
            params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context: Any = native.llama_init_from_model(model.handle, params)
        if not self._context:
            raise failure(
                Code.OUT_OF_MEMORY,
                f"{LIBRARY} cannot make a context of {context_size:,} tokens for {model.path.name}; ask for less",
                phase="load",
                details={"log": log.tail(), "context_size": context_size},
            )
        self._log = log
        self._memory = native.llama_get_memory(self._context)
        self._batch = native.llama_batch_init(SLICE_TOKENS, 0, 1)
        self._vocabulary_size = model.vocabulary_size
        self._logits_address = 0
        self._logits = numpy.empty(0, dtype=numpy.float32)
        for index in range(SLICE_TOKENS):
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = 0
            self._batch.logits[index] = 0
        self.watch(_never)

    @property
    def handle(self) -> Any:
        """The engine's own pointer; None once it is closed."""
        return self._context

    def watch(self, flag: AbortFlag) -> None:
        """From now on `flag` gives up a running `decode`. The caller keeps the flag alive until the next `watch`."""
        self._flag = flag
        native.llama_set_abort_callback(self._context, _ask_flag, ctypes.c_void_p(flag.address))

    def clear(self) -> None:
        """Forgets every token: what follows is computed as in a new context."""
        if self._memory:
            native.llama_memory_clear(self._memory, True)

    def decode(self, tokens: Sequence[int], position: int) -> Decoded:
        """Computes `tokens` (at most `SLICE_TOKENS`), the first one at `position`, and the logits after the last.

        Raises `DEVICE_FAULT` with the engine's last lines when the computation fails.
        """
        batch, count = self._batch, len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position + index
        batch.n_tokens = count
        batch.logits[count - 1] = 1
        status = native.llama_decode(self._context, batch)
        batch.logits[count - 1] = 0
        if status == 0:
            return Decoded.DONE
        if status == _ABORTED:
            return Decoded.ABORTED
        if status == _NO_ROOM:
            return Decoded.NO_ROOM
        raise failure(
            Code.DEVICE_FAULT,
            f"{LIBRARY} failed to compute {count} tokens at position {position} (llama_decode gave {status})",
            phase="inference",
            details={"log": self._log.tail(), "status": status},
        )

    def has_finite_logits(self) -> bool:
        """Whether the last token's logits have a largest one: not with a NaN among them, not when all are -inf.

        Samplers sort by comparing; numbers that do not compare would lead them out of their arrays.
        """
        pointer = native.llama_get_logits_ith(self._context, -1)
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        if address != self._logits_address:
            if not address:
                return False
            self._logits_address = address
            self._logits = numpy.ctypeslib.as_array(pointer, shape=(self._vocabulary_size,))
        return bool(numpy.isfinite(self._logits.max()))

    def close(self) -> None:
        if self._context:
            native.llama_batch_free(self._batch)
            native.llama_free(self._context)
            self._context = None


class Sampler:
    """Draws tokens by the engine's own chain, in llama-cpp-python's order: penalties, then the likeliest token at
    temperature 0, else top-k, top-p, min-p, temperature and the dice of `seed`."""

    def __init__(self, settings: SamplingSettings, vocabulary_size: int) -> None:
        self._chain: Any = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        if settings.repeat_penalty != 1.0:
            penalty = settings.repeat_penalty
            self._add(native.llama_sampler_init_penalties(vocabulary_size, PENALTY_WINDOW, penalty, 0.0, 0.0))
        if settings.temperature < _COLDEST:
            self._add(native.llama_sampler_init_greedy())
            return
        self._add(native.llama_sampler_init_top_k(settings.top_k))
        self._add(native.llama_sampler_init_top_p(settings.top_p, 1))
        self._add(native.llama_sampler_init_min_p(settings.min_p, 1))
        self._add(native.llama_sampler_init_temp(settings.temperature))
        self._add(native.llama_sampler_init_dist(settings.seed))

    def sample(self, context: Context) -> int:
        """The next token after the last one decoded."""
        return int(native.llama_sampler_sample(self._chain, context.handle, -1))

    def _add(self, sampler: Any) -> None:
        native.llama_sampler_chain_add(self._chain, sampler)

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        native.llama_sampler_free(self._chain)
