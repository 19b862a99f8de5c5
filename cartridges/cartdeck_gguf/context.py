"""Owns the engine's context: a batch of tokens of several sequences, their computation, the numbers after them, and
which tokens each sequence has seen.

It does not know requests, nor why a sequence is computed. Imported like `llama`: on the owner's thread, at a load.
"""

import ctypes
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from cartdeck_gguf.abort_flag import AbortFlag
from cartdeck_gguf.llama import LIBRARY, NATIVE, NUMPY, Model
from cartdeck_gguf.native_log import NativeLog
from cartdeck_modelkit.gguf.memory import MOST_TEXTS, MOST_TEXTS_WITH_STATE, SLICE_TOKENS
from cartdeck_protocol.errors import Code, failure

BATCH_TOKENS: Final = SLICE_TOKENS
"""How many tokens one call of the engine takes at most, of all sequences together."""

_ABORTED: Final = 2
_NO_ROOM: Final = 1

# The GIL-free question of AbortFlag, as llama.cpp wants it: bool (*)(void *). The low byte of strlen's result is it.
_ask_flag: Any = ctypes.cast(ctypes.CDLL(None).strlen, NATIVE.ggml_abort_callback)

# The same function as the binding's, whose answer is a number here: a pointer object costs more than the call.
_logits_address: Any = NATIVE._lib["llama_get_logits_ith"]
_logits_address.argtypes, _logits_address.restype = (ctypes.c_void_p, ctypes.c_int32), ctypes.c_void_p


class Decoded(Enum):
    """How a call of `Context.compute` ended."""

    DONE = "done"
    ABORTED = "aborted"
    NO_ROOM = "no room"


class Logits(NamedTuple):
    """Float32 numbers, one a token of the vocabulary, twice the same memory."""

    numbers: Any
    """A plain array, to look at or change a few: numpy takes 30 µs for two of them when its code is not at hand."""
    array: Any
    """As numpy's."""


class Context:
    """The tokens that a model has seen, by sequence, and the computation that goes on from them.

    All sequences share `context_size` cells, one a token; a cell that two sequences share counts once.
    """

    def __init__(
        self,
        model: Model,
        *,
        log: NativeLog,
        context_size: int,
        threads: int,
        most_sequences: int = MOST_TEXTS,
    ) -> None:
        """Raises `OUT_OF_MEMORY` with the engine's last lines when the buffers cannot be had."""
        self.sequences = min(most_sequences, MOST_TEXTS_WITH_STATE) if model.is_recurrent else most_sequences
        self.flag = AbortFlag()
        """Set from any thread, it gives up a running `compute`; cleared by whoever computes."""
        params = NATIVE.llama_context_default_params()
        params.n_ctx = max(context_size, self.sequences)  # with fewer the engine ends the process
        params.n_batch = params.n_ubatch = min(BATCH_TOKENS, params.n_ctx)
        params.n_seq_max = self.sequences
        # No call asks for more logits. Else there is room for those of each token: 537 MB for 262,144 words, unused.
        params.n_outputs_max = self.sequences
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        # Fused attention wherever the engine can: it passes over the cells of others and empty ones, a token in 12.7 ms
        # instead of 14.9 (SmolLM2, one thread), and keeps no scores of the whole context.
        params.flash_attn_type = NATIVE.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._context: Any = NATIVE.llama_init_from_model(model.handle, params)
        if not self._context:
            raise failure(
                Code.OUT_OF_MEMORY,
                f"{LIBRARY} cannot make a context of {context_size:,} tokens for {model.path.name}; ask for less",
                phase="load",
                details={"log": log.tail(), "context_size": context_size},
            )
        self._log = log
        self._memory: Any = NATIVE.llama_get_memory(self._context)
        self._vocabulary_size = model.vocabulary_size
        self._logits: dict[int, Logits] = {}
        self.is_divisible = not model.is_recurrent
        """Whether a sequence can be copied or forgotten in part: the state of a recurrent model is one whole."""
        self._make_batch()
        NATIVE.llama_set_abort_callback(self._context, _ask_flag, ctypes.c_void_p(self.flag.address))

    def _make_batch(self) -> None:
        size = BATCH_TOKENS
        numbers: Any = ctypes.c_int32 * size
        # plain arrays: the one token of a text's next step is put in with a fraction of what numpy's would take
        self._tokens, self._positions, self._sequence_ids = numbers(), numbers(), numbers()
        self._ones, self._wants = numbers(*[1] * size), (ctypes.c_int8 * size)()
        first = ctypes.addressof(self._sequence_ids)
        self._pointers: Any = (ctypes.c_void_p * size)(*(first + 4 * index for index in range(size)))
        batch: Any = NATIVE.llama_batch()
        for name, array in (("token", self._tokens), ("pos", self._positions), ("n_seq_id", self._ones)):
            setattr(batch, name, ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)))
        batch.logits = ctypes.cast(self._wants, ctypes.POINTER(ctypes.c_int8))
        batch.seq_id = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.n_tokens = 0
        self._batch, self._count, self._rows = batch, 0, list[int]()

    @property
    def handle(self) -> Any:
        """The engine's own pointer; None once it is closed."""
        return self._context

    @property
    def room(self) -> int:
        """How many more tokens the batch takes."""
        return BATCH_TOKENS - self._count

    def start_batch(self) -> None:
        """Empties the batch."""
        for row in self._rows:
            self._wants[row] = 0
        self._rows.clear()
        self._count = 0

    def add(self, sequence: int, tokens: Sequence[int], position: int) -> int:
        """Puts tokens of a sequence into the batch, the first one at `position`; at most `room`. The answer is the row
        under which the logits after the last of them are found once it is computed."""
        start, end = self._count, self._count + len(tokens)
        if end == start + 1:
            self._tokens[start], self._positions[start], self._sequence_ids[start] = tokens[0], position, sequence
        else:
            self._tokens[start:end] = tokens
            self._positions[start:end] = range(position, position + len(tokens))
            self._sequence_ids[start:end] = [sequence] * len(tokens)
        row = end - 1
        self._wants[row] = 1
        self._rows.append(row)
        self._count = end
        return row

    def compute(self) -> Decoded:
        """Computes the batch. Nothing of it is remembered unless it is `DONE`.

        Raises `DEVICE_FAULT` with the engine's last lines when the computation fails.
        """
        self._batch.n_tokens = self._count
        status = NATIVE.llama_decode(self._context, self._batch)
        if status == 0:
            return Decoded.DONE
        if status == _ABORTED:
            return Decoded.ABORTED
        if status == _NO_ROOM:
            return Decoded.NO_ROOM
        raise failure(
            Code.DEVICE_FAULT,
            f"{LIBRARY} failed to compute {self._count} tokens (llama_decode gave {status})",
            phase="inference",
            details={"log": self._log.tail(), "status": status},
        )

    def logits(self, row: int) -> "Logits | None":
        """The numbers after the token in that row of the batch, as the engine holds them: they may be changed, and are
        gone with the next `compute`. None when there are none."""
        address: int = _logits_address(self._context, row) or 0
        found = self._logits.get(address)
        if found is None and address:
            if len(self._logits) > BATCH_TOKENS:
                self._logits.clear()
            numbers: Any = (ctypes.c_float * self._vocabulary_size).from_address(address)
            found = self._logits[address] = Logits(numbers, NUMPY.ctypeslib.as_array(numbers))
        return found

    # what sequences have seen

    def copy(self, source: int, target: int, length: int, *, start: int = 0) -> None:
        """Makes a sequence that has seen `start` tokens share those of another from there up to `length`."""
        NATIVE.llama_memory_seq_cp(self._memory, source, target, start, length)

    def forget(self, sequence: int, start: int = 0) -> None:
        """Has a sequence forget its tokens from `start` on; all of them, of one that is no longer used."""
        if self._memory:
            NATIVE.llama_memory_seq_rm(self._memory, sequence, start or -1, -1)

    def is_whole(self, sequence: int, length: int) -> bool:
        """Whether the cells of all `length` tokens are there: a sliding window drops the oldest."""
        first: int = NATIVE.llama_memory_seq_pos_min(self._memory, sequence)
        last: int = NATIVE.llama_memory_seq_pos_max(self._memory, sequence)
        return first == 0 and last == length - 1

    def save(self, sequence: int) -> Any:
        """What the sequence has seen, as bytes (an array of uint8) that `restore` takes; None when it cannot be had."""
        size: int = NATIVE.llama_state_seq_get_size(self._context, sequence)
        state = NUMPY.empty(size, NUMPY.uint8)
        pointer = ctypes.cast(state.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        return (
            state if size and NATIVE.llama_state_seq_get_data(self._context, pointer, size, sequence) == size else None
        )

    def restore(self, sequence: int, state: Any) -> bool:
        """Gives an empty sequence what `save` took; False, and it is empty, when there is no room."""
        pointer = ctypes.cast(state.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        return bool(NATIVE.llama_state_seq_set_data(self._context, pointer, len(state), sequence))

    def clear(self) -> None:
        """Forgets every token of every sequence."""
        if self._memory:
            NATIVE.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        if self._context:
            self._logits.clear()
            NATIVE.llama_free(self._context)
            self._context = None
