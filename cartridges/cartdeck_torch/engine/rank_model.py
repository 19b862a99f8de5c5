# pyright: basic
# Of torch's names many have no types.
"""Owns what a rank beside the leader does: it computes its share, step by step as the leader tells, and draws nothing.

It does not know texts nor requests.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from cartdeck_modelkit.image import decode_image
from cartdeck_torch.engine.collective import Step, hear, join_group, share_bytes, share_tokens
from cartdeck_torch.engine.eyes import forget_places, open_eyes
from cartdeck_torch.engine.kv_cache import KvCaches
from cartdeck_torch.engine.shares import Share, load_share
from cartdeck_torch.engine.tokens import read_tokenizer
from cartdeck_torch.engine.torch_device import TorchDevice, open_device, settle
from cartdeck_torch.folder import read_folder
from cartdeck_torch.parallel.work import RankWork, SeenText


def open_rank_device(work: RankWork) -> TorchDevice:
    """The rank's own device."""
    settle()
    return open_device(work.device, threads=work.threads)


class RankModel:
    """A rank's share of a language model."""

    def __init__(self, work: RankWork, device: TorchDevice, *, report: Callable[[float], None]) -> None:
        self._device = device.device
        join_group(self._device, work)
        share = Share(work.rank, work.ranks)
        folder = read_folder(work.folder)
        self._model, dtype, _ = load_share(folder, work.settings, device, share=share, report=report)
        self._eyes = open_eyes(folder, read_tokenizer(folder), self._device, dtype)
        self._caches = KvCaches(self._model.config, kind=work.kv_cache)
        self._cache_name = "cache" if "cache" in signature(self._model.forward).parameters else "past_key_values"

    def compute(self) -> None:
        """Does what the leader tells until the text is over."""
        caches: dict[int, Any] = {}
        seen: dict[str, Any] = {}
        forget_places(self._model)
        with torch.inference_mode():
            while True:
                step, value, number = hear(self._device)
                if step is Step.END:
                    return
                if step is Step.TAKE:
                    caches = {0: self._caches.take(value)}
                elif step is Step.COPY:
                    caches[1] = self._caches.copy(caches[0])
                elif step is Step.SEE:
                    seen = self._see(SeenText.from_bytes(share_bytes(None, value, device=self._device)))
                else:
                    ids = [value] if step is Step.TOKEN else share_tokens(None, value, device=self._device)
                    self._forward(ids, caches[number], seen)
                    seen = {}

    def _see(self, seen: SeenText) -> dict[str, Any]:
        """What the model's forward takes beside the tokens."""
        assert self._eyes is not None
        return self._eyes.read(seen.text, [decode_image(one) for one in seen.images])[1]

    def _forward(self, ids: list[int], cache: Any, seen: dict[str, Any]) -> None:
        named: dict[str, Any] = {self._cache_name: cache, **seen}
        self._model(input_ids=torch.tensor([ids], device=self._device), use_cache=True, logits_to_keep=1, **named)
