# pyright: basic
# Of torch's names many have no types.
"""Owns language models: a prompt computed in slices, then one text after another, token by token.

It does not know requests. What a text leaves behind is a static cache, where there is to be one.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch

from cartdeck_modelkit.constraint import Constraint
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.engine.choice import Choice
from cartdeck_torch.engine.eyes import forget_places, language_class, open_eyes
from cartdeck_torch.engine.kv_cache import KvCaches
from cartdeck_torch.engine.layout import lay_out
from cartdeck_torch.engine.loading import UNUSED_BY_TEXT, load_weights
from cartdeck_torch.engine.prompting import Prompt, PromptMaker
from cartdeck_torch.engine.sampler import Sampler
from cartdeck_torch.engine.stopping import layers_of, stopping
from cartdeck_torch.engine.tokens import read_tokenizer
from cartdeck_torch.engine.torch_device import TorchDevice
from cartdeck_torch.engine.vocabulary import PieceTable
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.generation import Generation
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings

SLICE_TOKENS = 512
"""Of a prompt at a time: 6 % slower than the whole at once, and progress is seen. A cancel acts within a layer."""


class TextGenerator:
    """A language model on its device, with eyes or without."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.tokenizer = read_tokenizer(folder)
        self.model, dtype, self.notice = self._load(folder, settings, device, report=report)
        self.device = device.device
        self.dtype = str(dtype).removeprefix("torch.")
        text = self.model.config.get_text_config()
        own = int(getattr(text, "max_position_embeddings", 0) or 4096)
        self.context_size = min(settings.context_size or own, own)
        self._pieces = PieceTable(self.tokenizer, int(text.vocab_size), self._find_ends(folder, text))
        sight = open_eyes(folder, self.tokenizer, self.device, dtype)
        self._prompts = PromptMaker(folder, self.tokenizer, self._pieces, sight=sight)
        self.caches = KvCaches(self.model.config, kind=settings.kv_cache)
        names = signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._layers = layers_of(self.model)

    def _load(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> tuple[Any, torch.dtype, str | None]:
        kind = language_class(folder)
        model, dtype, notice = load_weights(kind, folder, settings, device, report=report, unused=UNUSED_BY_TEXT)
        lay_out(model, is_mapped=folder.main_dtype == "F32", report=report)
        return model, dtype, notice

    def clear(self) -> None:
        """Forgets what is kept beside the weights: a static cache."""
        self.caches.clear()

    def generate(self, generation: Generation, job: Job) -> None:
        """Makes the texts on `job`, one after the other: of the first what it says, of the others what they put.

        Raises `BAD_ARGUMENT` for a bias on a token that there is not, `EMPTY_INPUT`, `CONTEXT_OVERFLOW` and what making
        prompts and constraints raises before anything is computed, `CANCELLED` within a layer, `NON_FINITE_OUTPUT`.
        """
        started_s = time.monotonic()
        generation.completion_tokens = generation.prompt_done = 0
        self._check_biases(generation)
        prompt = self._prompts.make(generation)
        constraint = self._prompts.constrain(generation)
        most_tokens = self._count(prompt, generation)
        job.touch()
        with torch.inference_mode():
            forget_places(self.model)
            cache = self.caches.take(len(prompt.ids) + most_tokens)
            with self._stopping(job):
                logits = self._compute_prompt(prompt, cache, generation, job)
            texts = generation.settings.texts
            for index in range(texts):
                own = cache if index == texts - 1 else self.caches.copy(cache)
                sampler = self._sampler(generation, index, constraint)
                choice = Choice(generation, index, pieces=self._pieces, sampler=sampler, job=job)
                self._draw(choice, logits.clone(), own, most_tokens=most_tokens, started_s=started_s)

    def _compute_prompt(self, prompt: Prompt, cache: Any, generation: Generation, job: Job) -> torch.Tensor:
        """The numbers behind the prompt. One with images is computed whole: its model looks for all their places."""
        logits: torch.Tensor | None = None
        ids = prompt.ids
        size = len(ids) if prompt.images else SLICE_TOKENS
        for first in range(0, len(ids), size):
            logits = self._step(ids[first : first + size], cache, **prompt.images)
            generation.prompt_done = min(first + size, len(ids))
            job.touch()
        assert logits is not None
        return logits

    def _draw(self, choice: Choice, logits: torch.Tensor, cache: Any, *, most_tokens: int, started_s: float) -> None:
        while True:
            token = choice.draw(logits, most_tokens=most_tokens, started_s=started_s)
            if choice.is_over:
                return
            logits = self._step([token], cache)

    def _step(self, ids: list[int], cache: Any, **images: Any) -> torch.Tensor:
        """[vocabulary] logits behind the last of `ids`, float32."""
        named: dict[str, Any] = {self._cache_name: cache, **images}
        out = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=True, logits_to_keep=1, **named)
        return out.logits[0, -1].float()

    def _sampler(self, generation: Generation, index: int, constraint: Constraint | None) -> Sampler:
        own = None if constraint is None else constraint.fork()
        return Sampler(generation.settings, self.device, seed=generation.seed(index), constraint=own)

    def _count(self, prompt: Prompt, generation: Generation) -> int:
        """How many tokens each text may have. Raises `CONTEXT_OVERFLOW` where there is room for none."""
        if len(prompt.ids) >= self.context_size:
            raise self._overflow(len(prompt.ids), "prompt" if generation.question is None else "messages")
        generation.prompt_tokens = len(prompt.ids)
        most_tokens = min(generation.max_tokens, self.context_size - len(prompt.ids))
        generation.most_tokens = most_tokens * generation.settings.texts
        return most_tokens

    def _check_biases(self, generation: Generation) -> None:
        for token, _ in generation.settings.logit_bias:
            if token >= self._pieces.size:
                message = f"logit-bias: found the token {token}, and the model has {self._pieces.size:,} tokens"
                raise failure(Code.BAD_ARGUMENT, message, argument="logit-bias")

    def _stopping(self, job: Job) -> AbstractContextManager[None]:
        return stopping(self._layers, job)

    def _find_ends(self, folder: ModelFolder, text: Any) -> set[int]:
        said = (folder.record("generation_config.json") or {}).get("eos_token_id", getattr(text, "eos_token_id", None))
        ends = {one for one in (said if isinstance(said, list) else [said]) if type(one) is int}
        config = folder.record("tokenizer_config.json") or {}
        name = config.get("eos_token")
        name = name.get("content") if isinstance(name, dict) else name
        token = self.tokenizer.token_to_id(name) if isinstance(name, str) else None
        return ends | ({int(token)} if token is not None else set())

    def _overflow(self, tokens: int, name: str) -> CartdeckError:
        return failure(
            Code.CONTEXT_OVERFLOW,
            f"a prompt of {tokens:,} tokens does not fit a context of {self.context_size:,}, one of which is for the "
            "answer",
            argument=name,
            phase="inference",
            details={"prompt_tokens": tokens, "context_size": self.context_size},
        )
