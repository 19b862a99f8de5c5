"""Owns the way into llama.cpp: its logs, the loading of a model, its vocabulary. The one module that imports it.

It does not know requests, nor what is computed (`context`) and drawn (`sampler`). Nothing here is safe for two threads
at once: one thread owns a model and all that was made from it. The high-level class of llama-cpp-python is not used: it
prints, points the process's own descriptors elsewhere while it loads, and has no way to show or stop a load.
"""

# pyright: basic
# Reason: llama_cpp declares its functions by decorators and its pointers by types that exist for checkers alone.

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy
from llama_cpp import llama_cpp as native
from llama_cpp import mtmd_cpp

from cartdeck_gguf.cutting import Cutter, GivenUp, never
from cartdeck_gguf.large_pages import ask_for_large_pages, own_memory
from cartdeck_gguf.load_failure import load_failure
from cartdeck_gguf.native_log import NativeLog
from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_protocol.errors import Code, failure

NATIVE: Any = native
"""llama.cpp's functions, for the modules that call one which this module has no name for."""
NUMPY: Any = numpy
"""Arrays, for the modules that look at what the engine computed."""
VISION: Any = mtmd_cpp
"""The same of libmtmd, which turns images into embeddings."""

LIBRARY: Final = "llama-cpp-python"
VERSION: Final = str(llama_cpp.__version__)

_GPU_TYPES: Final = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and …_IGPU, one that shares the machine's memory."""

_PIECE_BYTES: Final = 256
_PART_CHARACTERS: Final = 32_768

_log_callbacks: list[object] = []


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


def device_memory_bytes() -> int | None:
    """What the GPUs that the engine can use have free, all together; None without one.

    The binding does not declare these functions of ggml, which are found through the library that needs them.
    """
    functions: dict[str, Any] = {}
    for name, arguments, result in (
        ("ggml_backend_dev_count", (), ctypes.c_size_t),
        ("ggml_backend_dev_get", (ctypes.c_size_t,), ctypes.c_void_p),
        ("ggml_backend_dev_type", (ctypes.c_void_p,), ctypes.c_int),
        ("ggml_backend_dev_memory", (ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2), None),
    ):
        function = functions[name] = native._lib[name]
        function.argtypes, function.restype = arguments, result
    free, total, found = ctypes.c_size_t(), ctypes.c_size_t(), []
    for index in range(functions["ggml_backend_dev_count"]() if can_use_gpu() else 0):
        device = functions["ggml_backend_dev_get"](index)
        if functions["ggml_backend_dev_type"](device) in _GPU_TYPES:
            functions["ggml_backend_dev_memory"](device, free, total)
            found.append(free.value)
    return sum(found) if found else None


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
        is_mapped: bool = True,
    ) -> None:
        """Loads `path`. `on_progress(fraction)` is called as tensors come; False gives the load up (CANCELLED).
        Without weights the vocabulary alone is loaded, and no context can be made. Weights that are not mapped are
        read into memory with large pages: faster to compute with, and not shared with another process.

        Raises what `load_failure` says.
        """
        params = native.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = not has_weights
        if not is_mapped:
            params.load_mode = native.LLAMA_LOAD_MODE_NONE
        is_given_up, is_begun, memory_before = False, False, own_memory()

        def on_tensor(fraction: float, _user_data: object) -> bool:
            nonlocal is_given_up, is_begun
            if not (is_begun or is_mapped):  # allocated by now, and nothing read yet
                ask_for_large_pages(memory_before)
            is_begun = True
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
        self._buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        self.cutter = Cutter(native, self._vocabulary, splitter=self._metadata(b"tokenizer.ggml.pre"))
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

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
    def is_recurrent(self) -> bool:
        """Whether what was seen is kept in a state that is one whole, in some layers at least."""
        return bool(native.llama_model_is_recurrent(self._model) or native.llama_model_is_hybrid(self._model))

    @property
    def vocabulary_size(self) -> int:
        return int(native.llama_vocab_n_tokens(self._vocabulary))

    @property
    def trained_context(self) -> int:
        """How many tokens the model was made to see."""
        return int(native.llama_model_n_ctx_train(self._model))

    def tokenize(self, text: str, is_given_up: GivenUp = never) -> list[int]:
        """The tokens of a prompt. Names of special tokens in it count as those tokens; one beginning-of-text token
        comes first where the model's metadata asks for it, and is not put before one that is there already."""
        found = self.cutter.cut(text, argument="prompt", is_given_up=is_given_up)
        first: Any = native.llama_vocab_bos(self._vocabulary)
        if native.llama_vocab_get_add_bos(self._vocabulary) and first >= 0 and found[:1] != [first]:
            found.insert(0, first)
        return found

    def exceeds(self, text: str, tokens: int, is_given_up: GivenUp = never) -> bool:
        """Whether a long text has surely more than this many tokens: told from its parts, as far as needed.

        A cut adds tokens, so parts count as half of what they have.
        """
        count = 0
        for start in range(0, len(text) if len(text) > _PART_CHARACTERS else 0, _PART_CHARACTERS):
            part = text[start : start + _PART_CHARACTERS]
            count += len(self.cutter.cut(part, argument="prompt", is_given_up=is_given_up))
            if count > 2 * tokens:
                return True
        return False

    def _metadata(self, key: bytes) -> str:
        """A text of the file's metadata; "" without it."""
        buffer: Any = self._buffer
        size = native.llama_model_meta_val_str(self._model, key, buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace") if size >= 0 else ""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the text."""
        found = self._ends.get(token)
        if found is None:
            found = self._ends[token] = bool(native.llama_vocab_is_eog(self._vocabulary, token))
        return found

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

    def token_table(self) -> TokenTable:
        """The whole vocabulary, for constraints; a tenth of a second for fifty thousand tokens."""
        everything = range(self.vocabulary_size)
        return TokenTable(
            pieces=[self._read_piece(token) for token in everything],
            special=[token for token in everything if native.llama_vocab_is_control(self._vocabulary, token)],
            end=[token for token in everything if self.is_end(token)],
            tokenize=lambda text: self.cutter.cut(text, reads_special=False),
        )

    def close(self) -> None:
        if self._model:
            native.llama_model_free(self._model)
            self._model = None
