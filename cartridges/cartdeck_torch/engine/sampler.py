# pyright: basic
# Of torch's names many have no types.
"""Owns the drawing of one token after another for one text: nothing of it is shared with another text.

It does not know models nor texts; it works on one row of logits. The order is llama.cpp's: bias and penalties,
constraint, top-k, top-p, min-p, temperature, draw.
"""

import numpy as np
import torch

from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.sampling import SamplingSettings

_NEVER = float("-inf")
_LOWEST_TEMPERATURE = 1e-6
"""Below it only the likeliest token is drawn anyway."""


class Sampler:
    """Draws the tokens of one text, by its own generator of random numbers."""

    def __init__(
        self, settings: SamplingSettings, device: torch.device, *, seed: int, constraint: Constraint | None
    ) -> None:
        self._settings = settings
        self._constraint = constraint
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._device = device
        self._counts: dict[int, int] = {}
        self._biased = torch.tensor([token for token, _ in settings.logit_bias], device=device, dtype=torch.long)
        self._biases = torch.tensor([bias for _, bias in settings.logit_bias], device=device)

    @property
    def is_complete(self) -> bool:
        """Whether the constraint lets nothing follow."""
        return self._constraint is not None and self._constraint.is_complete

    def draw(self, logits: torch.Tensor) -> int:
        """The next token from [vocabulary] `logits`, which are changed."""
        settings = self._settings
        if settings.is_plain and self._constraint is None:
            return int(logits.argmax())
        logits = logits.float()
        self._weigh(logits)
        if self._constraint is not None:
            allowed = np.unpackbits(np.frombuffer(self._constraint.mask(), np.uint8), bitorder="little")
            allowed = torch.from_numpy(allowed[: logits.shape[0]].astype(bool)).to(logits.device)
            logits[: allowed.shape[0]].masked_fill_(~allowed, _NEVER)
            logits[allowed.shape[0] :] = _NEVER
        token = int(logits.argmax()) if settings.temperature == 0 else self._choose(logits)
        if settings.has_penalties:
            self._counts[token] = self._counts.get(token, 0) + 1
        return token

    def accept(self, token: int) -> None:
        """The text goes on with this token."""
        if self._constraint is not None:
            self._constraint.accept(token)

    def _weigh(self, logits: torch.Tensor) -> None:
        if self._settings.logit_bias:
            logits[self._biased] += self._biases
        if not self._counts:
            return
        settings = self._settings
        tokens = torch.tensor(list(self._counts), device=self._device)
        counts = torch.tensor(list(self._counts.values()), device=self._device, dtype=logits.dtype)
        some = logits[tokens]
        some = torch.where(some > 0, some / settings.repeat_penalty, some * settings.repeat_penalty)
        logits[tokens] = some - counts * settings.frequency_penalty - settings.presence_penalty

    def _choose(self, logits: torch.Tensor) -> int:
        settings = self._settings
        count = min(settings.top_k or logits.shape[0], logits.shape[0])
        values, tokens = logits.topk(count)  # falling
        likely = torch.softmax(values, dim=0)
        kept = torch.ones_like(likely, dtype=torch.bool)
        if settings.top_p < 1:
            kept &= (likely.cumsum(0) - likely) < settings.top_p
        if settings.min_p > 0:
            kept &= likely >= settings.min_p * likely[0]
        kept[0] = True
        # from the largest down: a likelihood that is no number would cost the device on a GPU, however small the
        # temperature or large the numbers that led to it
        values = (values - values[0]) / max(settings.temperature, _LOWEST_TEMPERATURE)
        values = values.nan_to_num(nan=_NEVER, neginf=_NEVER).masked_fill(~kept, _NEVER)
        values[0] = 0.0
        place = torch.multinomial(torch.softmax(values, dim=0), 1, generator=self._generator)
        return int(tokens[place])
