# pyright: basic
# Of torch's names many have no types.
"""Owns how work inside a model's forward pass ends early: each layer asks first whether it is still wanted.

It does not know what the work is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cartdeck_torch.job import Job

_LAYERS = ("DecoderLayer", "EncoderLayer", "VisionBlock")


def layers_of(model: Any) -> list[Any]:
    """The layers of a model, those of its towers too, by the names that transformers gives their classes."""
    return [one for one in model.modules() if type(one).__name__.endswith(_LAYERS)]


@contextmanager
def stopping(layers: Sequence[Any], job: Job) -> Iterator[None]:
    """While the block runs, each of `layers` raises `CANCELLED` once the job is given up."""

    def ask(*_: Any) -> None:
        job.stop.check()

    hooks = [layer.register_forward_pre_hook(ask) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
