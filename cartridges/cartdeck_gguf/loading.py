"""Owns the choice of how a model is loaded, context size, threads and layers on the GPU, and the loaded model itself.

It does not know requests or progress. Everything here runs on the thread that owns the model; the engine is imported
there too, at the first load.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.info import count_tensor_types, main_tensor_type
from cartdeck_gguf.large_pages import page_bytes
from cartdeck_gguf.model_kind import check_is_model, makes_vectors_only
from cartdeck_gguf.native_log import Listener, NativeLog
from cartdeck_gguf.prefix_cache import PARKED_BYTES
from cartdeck_gguf.shards import read_model
from cartdeck_gguf.soundness import check_sound
from cartdeck_gguf.vocabulary import Vocabulary, check_vocabulary
from cartdeck_modelkit.gguf.header import Header
from cartdeck_modelkit.gguf.memory import estimate_memory, largest_context
from cartdeck_modelkit.libraries import check_installed
from cartdeck_modelkit.machine import available_memory_bytes, default_threads
from cartdeck_modelkit.refusal import blaming
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf import llama
    from cartdeck_gguf.context import Context
    from cartdeck_gguf.sampler import Sampler
    from cartdeck_modelkit.constraint import Constraint

ENGINE_LIBRARY: Final = "llama-cpp-python"
SMALLEST_CONTEXT: Final = 256
LARGEST_CONTEXT: Final = 16_777_216
UNKNOWN_CONTEXT: Final = 4096
"""For a model that does not say how many tokens it was made to see."""

CPU_SLICE_TOKENS: Final = 64
GPU_SLICE_TOKENS: Final = 512
"""How many tokens of a prompt are computed at a time. A CPU is as fast with few, and a prefix that was seen before is
taken over up to where a slice ends; a GPU wants many."""

LEAST_READ_BYTES: Final = 32 * 1024 * 1024
"""Weights that a processor's own memory holds need no large pages."""

_ALL_LAYERS: Final = 0x7FFF_FFFF

native_log = NativeLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What the caller asked for: 0 leaves context and threads to this module, -1 the layers on a GPU to `offload`, and
    where nothing is known of the GPU puts all there."""

    context_size: int = 0
    threads: int = 0
    gpu_layers: int = -1
    context_limit: int = 0
    """The largest context that the host granted memory for; 0 where it was not asked."""
    parked_bytes: int = PARKED_BYTES
    """What texts that are over may take of the memory, for each context."""


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """A model ready to make texts: to be used by its owner's thread alone."""

    model: "llama.Model"
    context: "Context"
    context_size: int
    apart_bytes: int
    """What the context of `apart` takes: cells and buffers, estimated."""
    threads: int
    device: str
    gpu_layers: int
    dtype: str | None
    vocabulary: Vocabulary
    slice_tokens: int
    parked_bytes: int
    engine_version: str
    new_sampler: Callable[[SamplingSettings, int, "Constraint | None"], "Sampler"]
    """Of a request's settings, a text's seed, and what it is held to."""
    new_context: Callable[[], "Context"]
    adapt: Callable[["Context"], None] = lambda context: None
    """Readies a new context for what belongs to the model: adapters."""
    _apart: "Context | None" = None

    def apart(self) -> "Context":
        """A context of one sequence, beside the other: made when it is first asked for, it takes as many cells again.
        Raises `INSUFFICIENT_MEMORY`, `OUT_OF_MEMORY`."""
        if self._apart is None:
            available_bytes = available_memory_bytes()
            if self.device == "cpu" and available_bytes is not None and available_bytes < self.apart_bytes:
                raise failure(
                    Code.INSUFFICIENT_MEMORY,
                    f"a context apart for deterministic texts needs about {self.apart_bytes:,} bytes of memory, and "
                    f"{available_bytes:,} are available; ask for a smaller context",
                    argument="deterministic",
                    details={"needed": self.apart_bytes, "available": available_bytes},
                )
            context = self.new_context()
            self.adapt(context)
            self._apart = context
        return self._apart

    def close(self) -> None:
        """Frees the contexts, then the weights."""
        if self._apart is not None:
            self._apart.close()
        self.context.close()
        self.model.close()


def check_model(path: Path) -> list[Header]:
    """The headers of the model at `path`, once it is known to be whole and to make text.

    Raises what `read_model` and `check_sound` raise; `BAD_MODEL_FILE` for an adapter, a projector or an importance
    matrix; `UNSUPPORTED` for a model that embeds.
    """
    with blaming("model"):
        headers = read_model(path)
        first = headers[0]
        check_is_model(first, wanted="a language model")
        if makes_vectors_only(first):
            what = f"an embedding model ({first.architecture}): it makes vectors, no text"
            raise failure(Code.UNSUPPORTED, f"{path} is {what}")
        check_sound(first)
    return headers


def weights_of(headers: list[Header]) -> int:
    """The bytes of all tensors of a model."""
    return sum(tensor.size_bytes or 0 for header in headers for tensor in header.tensors)


def is_better_mapped(headers: list[Header]) -> bool:
    """Whether a model stays in its file instead of being read into large pages: a small one, which gains nothing, and
    one that takes more than half of the memory there is, since what was read of the file is kept beside it for a while.
    """
    weights_bytes, available_bytes = weights_of(headers), available_memory_bytes()
    is_large = available_bytes is not None and weights_bytes > available_bytes // 2
    return weights_bytes < LEAST_READ_BYTES or is_large or not page_bytes()


def own_context(header: Header) -> int:
    """How many tokens the model was made to see."""
    return min(header.integer(f"{header.architecture}.context_length") or UNKNOWN_CONTEXT, LARGEST_CONTEXT)


def choose_context(headers: list[Header], asked: int, *, available_bytes: int | None, limit: int = 0) -> int:
    """The context's size in tokens: as asked, else the model's own (up to a `limit`), as far as half of the memory left
    by the weights.

    Raises `INSUFFICIENT_MEMORY` when what was asked for, or the smallest of use, cannot fit.
    """
    first = headers[0]
    weights_bytes = weights_of(headers)
    own = min(own_context(first), limit or LARGEST_CONTEXT)
    wanted = asked or own
    if available_bytes is None:
        return wanted
    if asked:
        needed = estimate_memory(first, asked, weights_bytes=weights_bytes).total_bytes
        chosen = asked if needed <= available_bytes else 0
    else:
        needed = estimate_memory(first, min(own, SMALLEST_CONTEXT), weights_bytes=weights_bytes).total_bytes
        chosen = largest_context(first, limit=own, free_bytes=max(0, available_bytes - weights_bytes) // 2)
    if chosen < min(wanted, SMALLEST_CONTEXT):
        raise failure(
            Code.INSUFFICIENT_MEMORY,
            f"{first.path.name} with a context of {asked or SMALLEST_CONTEXT:,} tokens needs about {needed:,} bytes of "
            f"memory, and {available_bytes:,} are available",
            argument="context-size" if asked else None,
            phase="load",
            details={"needed": needed, "available": available_bytes},
        )
    return chosen


def load(
    headers: list[Header], settings: LoadSettings, *, listener: Listener, on_progress: Callable[[float], bool]
) -> LoadedModel:
    """Loads the model that `check_model` found. `listener` hears the engine's warnings; `on_progress` may give it up.

    Raises what `check_vocabulary` and `choose_context` raise, `CARTRIDGE_UNAVAILABLE` without the engine, and what
    `load_failure` says.
    """
    path = headers[0].path
    vocabulary = check_vocabulary(headers[0])
    engine = import_engine()
    from cartdeck_gguf import context as computing  # noqa: PLC0415 - heavy, as the engine is
    from cartdeck_gguf import sampler as drawing  # noqa: PLC0415 - heavy, as the engine is

    native_log.begin_section(listener)
    can_use_gpu = engine.can_use_gpu()
    layers = 0 if not can_use_gpu else _ALL_LAYERS if settings.gpu_layers < 0 else settings.gpu_layers
    if settings.gpu_layers > 0 and not can_use_gpu:
        listener("warning", f"gpu-layers {settings.gpu_layers} has no effect: this {ENGINE_LIBRARY} has no GPU to use")
    blocks = headers[0].integer(f"{headers[0].architecture}.block_count") or 0
    context_size = _context_for(headers, settings, is_on_gpu=layers > blocks, listener=listener)
    threads = settings.threads or default_threads()
    is_mapped = layers > 0 or is_better_mapped(headers)
    model = engine.Model(path, log=native_log, gpu_layers=layers, on_progress=on_progress, is_mapped=is_mapped)
    try:
        if not model.is_generator:
            raise failure(
                Code.UNSUPPORTED,
                f"{path} ({headers[0].architecture}) needs an encoder before its text, or makes no text at all",
                argument="model",
            )
        new_context = partial(computing.Context, model, log=native_log, context_size=context_size, threads=threads)
        context = new_context()
    except BaseException:
        model.close()
        raise
    return LoadedModel(
        model=model,
        context=context,
        context_size=context_size,
        apart_bytes=estimate_memory(headers[0], context_size, weights_bytes=0, texts=1).total_bytes,
        threads=threads,
        device="gpu" if layers else "cpu",
        gpu_layers=min(layers, blocks + 1),
        dtype=main_tensor_type(count_tensor_types(headers)),
        vocabulary=vocabulary,
        parked_bytes=settings.parked_bytes,
        slice_tokens=GPU_SLICE_TOKENS if layers else CPU_SLICE_TOKENS,
        engine_version=engine.VERSION,
        new_context=partial(new_context, most_sequences=1),
        new_sampler=lambda settings, seed, constraint: drawing.Sampler(
            settings, model, seed=seed, log=native_log, constraint=constraint
        ),
    )


def _context_for(headers: list[Header], settings: LoadSettings, *, is_on_gpu: bool, listener: Listener) -> int:
    """The context's size; of a model that lies in a GPU's own memory the machine's is not asked."""
    available_bytes = None if is_on_gpu else available_memory_bytes()
    chosen = choose_context(
        headers, settings.context_size, available_bytes=available_bytes, limit=settings.context_limit
    )
    own = headers[0].integer(f"{headers[0].architecture}.context_length")
    if own is not None and not settings.context_size and chosen < own:
        listener("info", f"the context is {chosen:,} of the model's {own:,} tokens: memory allows no more")
    return chosen


def check_engine() -> None:
    """Raises `CARTRIDGE_UNAVAILABLE` where the engine is not installed; it is not imported."""
    check_installed("llama_cpp", extra="gguf")


def import_engine():  # its type is that of the module
    """The module that wraps the engine, its logs taken over. Raises `CARTRIDGE_UNAVAILABLE` with how to install it."""
    # Threads of OpenMP that spin while they wait stop each other on a machine that does anything else: eighteen times
    # slower with one busy neighbour on two cores. It is read when the library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # When ggml aborts it runs a debugger for a trace of its own, seconds in which the death goes unnoticed.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        from cartdeck_gguf import llama as engine  # noqa: PLC0415 - heavy: only when a model is loaded
    except (ImportError, OSError, RuntimeError) as error:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"{ENGINE_LIBRARY} cannot be loaded ({error}); install it with: pip install 'cartdeck[gguf]'",
            phase="load",
        ) from error
    engine.begin(native_log)
    return engine
