"""Owns the drawing of one text's tokens by the engine's own chain of samplers, under a grammar or a mask where asked.

It does not know sequences nor text. Imported like `llama`: on the owner's thread, at a load.
"""

import ctypes
from math import isfinite
from typing import Any, Final

from cartdeck_gguf.context import Context, Logits
from cartdeck_gguf.gbnf import explain_refusal
from cartdeck_gguf.llama import NATIVE, NUMPY, Model
from cartdeck_gguf.logprobs import Scores
from cartdeck_gguf.native_log import NativeLog
from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_protocol.errors import Code, failure

PENALTY_WINDOW: Final = 64
_COLDEST: Final = 1e-5
_cast: Any = ctypes.cast
_ROOT: Final = b"root"
_CANDIDATE: Final = NUMPY.dtype([("id", NUMPY.int32), ("logit", NUMPY.float32), ("p", NUMPY.float32)])


class Sampler:
    """Draws tokens in llama-cpp-python's order: biases, penalties, then the likeliest token at temperature 0, else
    top-k, top-p, min-p, temperature and the dice of the seed.

    A `constraint` masks the tokens before the chain sees them. A grammar is the engine's own: a token is drawn freely
    and shown to the grammar; only when it refuses, all tokens are, and one is drawn anew among those it takes. That
    spares the walk over the whole vocabulary, several milliseconds, for nearly every token. At temperature 0 the text
    is the one that a walk for every token would give. Where nothing but the likeliest token is wanted, the chain is not
    asked.
    """

    def __init__(
        self, settings: SamplingSettings, model: Model, *, seed: int, log: NativeLog, constraint: Constraint | None
    ) -> None:
        """Raises `INVALID_GRAMMAR` for a grammar that the engine does not take, `BAD_ARGUMENT` for a bias on a token
        that the vocabulary lacks."""
        self._constraint = constraint
        self._biases = _read_biases(settings.logit_bias, model.vocabulary_size)
        self._is_greedy = settings.temperature < _COLDEST and not _has_penalties(settings)
        self._is_row_shared = settings.texts > 1
        is_free = constraint is None and not settings.grammar
        self._is_plain = self._is_greedy and is_free and not self._is_row_shared
        self._grammar: Any = _new_grammar(model, settings.grammar, log) if settings.grammar else None
        self._ids: Any = NUMPY.arange(model.vocabulary_size, dtype=NUMPY.int32)
        self._candidates: Any = NUMPY.zeros(model.vocabulary_size if self._grammar else 1, _CANDIDATE)
        self._chain: Any = NATIVE.llama_sampler_chain_init(NATIVE.llama_sampler_chain_default_params())
        try:
            self._fill_chain(settings, model.vocabulary_size, seed)
        except BaseException:
            self.close()
            raise

    def _fill_chain(self, settings: SamplingSettings, vocabulary_size: int, seed: int) -> None:
        if _has_penalties(settings):
            penalties = settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
            self._add(NATIVE.llama_sampler_init_penalties(vocabulary_size, PENALTY_WINDOW, *penalties))
        if settings.temperature < _COLDEST:
            self._add(NATIVE.llama_sampler_init_greedy())
            return
        self._add(NATIVE.llama_sampler_init_top_k(settings.top_k))
        self._add(NATIVE.llama_sampler_init_top_p(settings.top_p, 1))
        self._add(NATIVE.llama_sampler_init_min_p(settings.min_p, 1))
        self._add(NATIVE.llama_sampler_init_temp(settings.temperature))
        self._add(NATIVE.llama_sampler_init_dist(seed))

    def sample(self, context: Context, row: int) -> int | None:
        """The next token after the one in that row of the batch; None where its numbers cannot be drawn from: a NaN is
        among them, or all are -inf. Samplers sort by comparing; such numbers would lead them out of their arrays.

        Raises `INVALID_GRAMMAR` when grammar or constraint leave no token of this vocabulary to go on with.
        """
        found = context.logits(row)
        if found is None:
            return None
        if self._is_plain:
            return self._likeliest(found)
        logits, constraint = found.array, self._constraint
        if not isfinite(logits[logits.argmax()]):  # where a NaN is, it is the largest
            return None
        whole = logits.copy() if self._is_row_shared else None  # each text of a prompt draws its first token from it
        if constraint is not None:
            self._mask(logits, constraint)
        self._add_biases(found)
        if self._grammar:
            token = self._sample_by_grammar(logits)
        elif self._is_greedy:
            token = int(logits.argmax())
        else:
            token = int(NATIVE.llama_sampler_sample(self._chain, context.handle, row))
        if constraint is not None:
            constraint.accept(token)
        if whole is not None:
            logits[:] = whole
        return token

    def _likeliest(self, logits: Logits) -> int | None:
        self._add_biases(logits)
        token = int(logits.array.argmax())  # the chain would make a record of each token first; a NaN is the largest
        return token if isfinite(logits.numbers[token]) else None

    def _add_biases(self, logits: Logits) -> None:
        numbers = logits.numbers
        for token, bias in self._biases:
            numbers[token] += bias

    @property
    def is_complete(self) -> bool:
        """Whether the constraint lets nothing follow."""
        return self._constraint is not None and self._constraint.is_complete

    def scores(self, context: Context, row: int, top: int) -> Scores | None:
        """How likely the model finds each token there, and the `top` likeliest; before `sample` is asked."""
        logits = context.logits(row)
        return None if logits is None else Scores(logits.array, top)

    def _mask(self, logits: Any, constraint: Constraint) -> None:
        allowed: Any = NUMPY.unpackbits(NUMPY.frombuffer(constraint.mask(), NUMPY.uint8), bitorder="little")
        missing = len(logits) - len(allowed)
        if missing > 0:
            allowed = NUMPY.concatenate((allowed, NUMPY.zeros(missing, NUMPY.uint8)))
        logits[allowed[: len(logits)] == 0] = -NUMPY.inf
        if not isfinite(logits.max()):
            raise _stuck()

    def _sample_by_grammar(self, logits: Any) -> int:
        token = int(logits.argmax()) if self._is_greedy else self._draw(logits, is_walked=False)
        if not self._allows(token):
            token = self._draw(logits, is_walked=True)
        NATIVE.llama_sampler_accept(self._chain, token)
        NATIVE.llama_sampler_accept(self._grammar, token)
        return token

    def _draw(self, logits: Any, *, is_walked: bool) -> int:
        """A token by the chain, among all or among those that the grammar takes."""
        candidates = self._candidates
        candidates["id"], candidates["logit"], candidates["p"] = self._ids, logits, 0.0
        array = _candidate_array(candidates)
        if is_walked:
            NATIVE.llama_sampler_apply(self._grammar, ctypes.byref(array))
            if not NUMPY.isfinite(candidates["logit"].max()):
                raise _stuck()
        NATIVE.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _allows(self, token: int) -> bool:
        one: Any = NUMPY.zeros(1, _CANDIDATE)
        one["id"], one["logit"] = token, 1.0
        NATIVE.llama_sampler_apply(self._grammar, ctypes.byref(_candidate_array(one)))
        return bool(NUMPY.isfinite(one["logit"][0]))

    def _add(self, sampler: Any) -> None:
        NATIVE.llama_sampler_chain_add(self._chain, sampler)

    def close(self) -> None:
        if self._chain:
            NATIVE.llama_sampler_free(self._chain)
        if self._grammar:
            NATIVE.llama_sampler_free(self._grammar)
        self._chain = self._grammar = None


def _candidate_array(candidates: Any) -> Any:
    array: Any = NATIVE.llama_token_data_array()
    array.data = _cast(candidates.ctypes.data, type(array.data))
    array.size, array.selected, array.sorted = len(candidates), -1, False
    return array


def _has_penalties(settings: SamplingSettings) -> bool:
    penalties = settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
    return penalties != (1.0, 0.0, 0.0)


def _read_biases(biases: tuple[tuple[int, float], ...], vocabulary_size: int) -> list[tuple[int, float]]:
    """Tokens, each once, and what is added to their numbers."""
    added: dict[int, float] = {}
    for token, bias in biases:
        if token >= vocabulary_size:
            raise failure(
                Code.BAD_ARGUMENT,
                f"logit-bias: found the token {token}, expected one of the {vocabulary_size:,} of this vocabulary",
                argument="logit-bias",
            )
        added[token] = added.get(token, 0.0) + bias
    return list(added.items())


def _new_grammar(model: Model, text: str, log: NativeLog) -> Any:
    """The engine's own sampler for a grammar that `check_gbnf` let pass. The engine gives none for one that it cannot
    read, and would crash where that is used."""
    said_before = len(log.errors())
    grammar = NATIVE.llama_sampler_init_grammar(model.vocabulary, text.encode(), _ROOT)
    if not grammar:
        raise explain_refusal(text, log.errors()[said_before:])
    return grammar


def _stuck() -> Exception:
    return failure(
        Code.INVALID_GRAMMAR,
        "no token of this model's vocabulary goes on from here: what the grammar or schema still wants cannot be "
        "written with it",
        argument="grammar",
        phase="inference",
    )
