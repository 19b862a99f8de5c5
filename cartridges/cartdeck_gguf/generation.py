"""Owns the making of one text: the prompt computed slice by slice, tokens drawn one by one, and what ends it.

It does not know llama.cpp's functions, requests or threads. Each text starts from an empty context and computes its
prompt in the same slices, so the same seed gives the same text, in this process and in another.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cartdeck_gguf.abort_flag import AbortFlag
from cartdeck_gguf.sampling import SamplingSettings
from cartdeck_modelkit.provenance import FinishReason
from cartdeck_modelkit.text_stream import TextStream
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.llama import Sampler
    from cartdeck_gguf.loading import LoadedModel

PHASE: Final = "inference"


class Generation:
    """One text on its way. Its counts may be read by another thread while `run` makes it.

    `prompt_done` of `prompt_tokens` are computed, and `completion_tokens` of at most `most_tokens` are drawn;
    `finish_reason` is set when the text has its end.
    """

    def __init__(self, prompt: str, settings: SamplingSettings) -> None:
        self.prompt_tokens = 0
        self.prompt_done = 0
        self.completion_tokens = 0
        self.most_tokens = settings.max_tokens
        self.finish_reason: FinishReason | None = None
        self.first_token_s: float | None = None
        self.flag = AbortFlag()
        self._prompt = prompt
        self._settings = settings
        self._text = TextStream(settings.stop)
        self._started = 0.0

    def run(self, model: "LoadedModel", say: Callable[[str], None], touch: Callable[[], None]) -> None:
        """Makes the text on the thread that owns the model. `say(text)` gets its pieces, `touch()` is called when
        only a count changed.

        Raises `EMPTY_INPUT`, `CONTEXT_OVERFLOW` before anything is computed, `CANCELLED` within milliseconds of
        `flag.set()`, `NON_FINITE_OUTPUT`, `DEVICE_FAULT`.
        """
        self._started = time.monotonic()
        tokens = self._tokenize(model)
        touch()
        model.context.watch(self.flag)
        model.context.clear()
        self._compute_prompt(model, tokens, touch)
        with model.new_sampler(self._settings) as sampler:
            self._draw_tokens(model, sampler, say, touch)
        tail = self._text.finish()
        if tail:
            say(tail)

    def _tokenize(self, model: "LoadedModel") -> list[int]:
        room = model.context_size
        if len(self._prompt) > room * model.vocabulary.longest_token_bytes or model.model.exceeds(self._prompt, room):
            raise self._overflow(f"of {len(self._prompt):,} characters", room)
        unknown = model.vocabulary.unknown_characters(self._prompt)
        if unknown:
            raise failure(
                Code.BAD_ARGUMENT,
                f"this model's vocabulary has no token for {', '.join(map(repr, unknown[:10]))} in the prompt",
                argument="prompt",
                phase=PHASE,
            )
        tokens = model.model.tokenize(self._prompt)
        self.prompt_tokens = len(tokens)
        if not tokens:
            raise failure(
                Code.EMPTY_INPUT,
                "the prompt is empty, and this model has no beginning-of-text token to start from",
                argument="prompt",
                phase=PHASE,
            )
        if len(tokens) >= room:
            raise self._overflow(f"of {len(tokens):,} tokens", room)
        self.most_tokens = min(self._settings.max_tokens, room - len(tokens))
        return tokens

    def _compute_prompt(self, model: "LoadedModel", tokens: Sequence[int], touch: Callable[[], None]) -> None:
        step = model.slice_tokens
        for start in range(0, len(tokens), step):
            if not self._decode(model, tokens[start : start + step], start):
                raise self._overflow(f"of {len(tokens):,} tokens", model.context_size)
            self.prompt_done = min(start + step, len(tokens))
            touch()

    def _draw_tokens(
        self, model: "LoadedModel", sampler: "Sampler", say: Callable[[str], None], touch: Callable[[], None]
    ) -> None:
        """Draws and computes tokens until one ends the text, or the text its stop string, or the room is used up."""
        native, context, stream = model.model, model.context, self._text
        position = self.prompt_tokens
        while self.finish_reason is None:
            if not context.has_finite_logits():
                raise failure(
                    Code.NON_FINITE_OUTPUT,
                    f"{native.path.name} gave numbers that are not finite after {self.completion_tokens} tokens; "
                    "its file may be damaged",
                    phase=PHASE,
                )
            token = sampler.sample(context)
            if self.first_token_s is None:
                self.first_token_s = time.monotonic() - self._started
            if native.is_end(token):
                self.finish_reason = "stop"
                return
            self.completion_tokens += 1
            text = stream.push(native.piece(token))
            if text:
                say(text)
            else:
                touch()
            if stream.stopped_by is not None:
                self.finish_reason = "stop"
            elif self.completion_tokens == self.most_tokens or not self._decode(model, (token,), position):
                self.finish_reason = "length"
            position += 1

    def _decode(self, model: "LoadedModel", tokens: Sequence[int], position: int) -> bool:
        """Whether there was room for the tokens. Raises `CANCELLED`."""
        if not self.flag.is_set:
            decoded = model.context.decode(tokens, position)
            if decoded != decoded.ABORTED:
                return decoded == decoded.DONE
        self.finish_reason = "cancelled"
        raise failure(Code.CANCELLED, f"given up by the caller after {self.completion_tokens} tokens", phase=PHASE)

    def _overflow(self, what: str, room: int) -> CartdeckError:
        return failure(
            Code.CONTEXT_OVERFLOW,
            f"a prompt {what} does not fit a context of {room:,} tokens, one of which is for the answer",
            argument="prompt",
            phase=PHASE,
            details={"prompt_tokens": self.prompt_tokens or None, "context_size": room},
        )
