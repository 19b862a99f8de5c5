# pyright: basic
# Of torch's names many have no types.
"""Owns language models: a prompt computed in slices, tokens drawn one by one, and what ends a text.

It does not know requests. Each text has a cache of its own, which is gone with it.
"""

import time
from collections.abc import Callable
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.text_stream import TextStream
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.engine.chat_text import ChatText
from cartdeck_torch.engine.loading import check_ids, load_weights
from cartdeck_torch.engine.sampler import Sampler
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
    """A causal language model on its device."""

    def __init__(
        self, folder: ModelFolder, settings: LoadSettings, device: TorchDevice, *, report: Callable[[float], None]
    ) -> None:
        self.tokenizer = read_tokenizer(folder)
        self.model, dtype, self.notice = load_weights(
            AutoModelForCausalLM, folder, settings, device, report=report, unused=_UNUSED
        )
        self.device = device.device
        self.dtype = str(dtype).removeprefix("torch.")
        text = self.model.config.get_text_config()
        own = int(getattr(text, "max_position_embeddings", 0) or 4096)
        self.context_size = min(settings.context_size or own, own)
        self.vocabulary_size = int(text.vocab_size)
        self._folder = folder
        self._ends = self._find_ends(folder, text)
        self._pieces = PieceTable(self.tokenizer, self.vocabulary_size, sorted(self._ends))
        self._chat = ChatText(folder)
        names = signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._layers = [one for one in self.model.modules() if type(one).__name__.endswith("DecoderLayer")]

    def generate(self, generation: Generation, job: Job) -> None:
        """Makes the text on `job`.

        Raises `EMPTY_INPUT`, `CONTEXT_OVERFLOW` before anything is computed, `CANCELLED` within a layer, and what a
        constraint raises.
        """
        started = time.monotonic()
        constraint = self._constrain(generation)
        ids = self._prompt_ids(generation)
        job.touch()
        cache = DynamicCache(config=self.model.config)
        sampler = Sampler(generation.settings, self.device, constraint=constraint)
        with torch.inference_mode(), self._stopping(job):
            logits = self._compute_prompt(ids, cache, generation, job)
            self._draw(logits, cache, sampler, generation, job, started=started)

    def _compute_prompt(self, ids: list[int], cache: Any, generation: Generation, job: Job) -> torch.Tensor:
        logits: torch.Tensor | None = None
        for first in range(0, len(ids), SLICE_TOKENS):
            logits = self._step(ids[first : first + SLICE_TOKENS], cache)
            generation.prompt_done = min(first + SLICE_TOKENS, len(ids))
            job.touch()
        assert logits is not None
        return logits

    def _draw(
        self, logits: torch.Tensor, cache: Any, sampler: Sampler, generation: Generation, job: Job, *, started: float
    ) -> None:
        stream = TextStream(generation.settings.stop)
        while generation.finish_reason is None:
            if not torch.isfinite(logits).any():
                raise failure(
                    Code.NON_FINITE_OUTPUT,
                    f"{self._folder.name} gave no numbers after {generation.completion_tokens} tokens in {self.dtype}",
                    phase="inference",
                )
            token = sampler.draw(logits)
            if generation.first_token_s is None:
                generation.first_token_s = time.monotonic() - started
            if token in self._ends:
                generation.finish_reason = "stop"
                break
            generation.completion_tokens += 1
            sampler.accept(token)
            text = stream.push(self._pieces.piece(token))
            if text:
                job.say(text)
            else:
                job.touch()
            if stream.stopped_by is not None or sampler.is_complete:
                generation.finish_reason = "stop"
            elif generation.completion_tokens == generation.most_tokens:
                generation.finish_reason = "length"
            else:
                logits = self._step([token], cache)
        tail = stream.finish()
        if tail:
            job.say(tail)

    def _step(self, ids: list[int], cache: Any) -> torch.Tensor:
        """[vocabulary] logits behind the last of `ids`, float32."""
        named: dict[str, Any] = {self._cache_name: cache}
        out = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=True, logits_to_keep=1, **named)
        return out.logits[0, -1].float()

    def _prompt_ids(self, generation: Generation) -> list[int]:
        if generation.dialogue is not None:
            text = self._chat.render(generation.dialogue)
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            name = "messages"
        else:
            ids = self.tokenizer.encode(generation.prompt or "", add_special_tokens=True).ids
            name = "prompt"
            if not ids and self._chat.begin is not None:
                token = self.tokenizer.token_to_id(self._chat.begin)
                ids = [] if token is None else [token]
        if not ids:
            raise failure(Code.EMPTY_INPUT, f"the {name} is empty", argument=name, phase="inference")
        check_ids(ids, self.vocabulary_size, name=self._folder.name)
        if len(ids) >= self.context_size:
            raise self._overflow(len(ids), name)
        generation.prompt_tokens = len(ids)
        generation.most_tokens = min(generation.max_tokens, self.context_size - len(ids))
        return ids

    def _constrain(self, generation: Generation) -> Constraint | None:
        schema = generation.settings.json_schema
        return None if schema is None else self._pieces.constraint_for(schema)

    @contextmanager
    def _stopping(self, job: Job):
        """While the block runs, each layer asks first whether the text is still wanted."""

        def ask(*_: Any) -> None:
            job.stop.check()

        hooks = [layer.register_forward_pre_hook(ask) for layer in self._layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

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


_UNUSED = ("mtp.", "model.mtp.", "visual.", "model.visual.")
"""Layers that predict further tokens, and towers for images: files may hold them, plain text needs none."""
