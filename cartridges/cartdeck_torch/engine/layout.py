# pyright: basic
# Of torch's names many have no types.
"""Owns how a model's weights lie in memory, where it computes one token after another on a CPU.

It does not know models. What is computed stays the same but for the order in which numbers are added.
"""

from collections.abc import Callable
from typing import Any

import torch

_TALL = 2
"""How many times taller than wide a matrix is that gains by it: layers that widen, and the one over the vocabulary."""


def lay_out(model: Any, *, report: Callable[[float], None]) -> None:
    """Has tall matrices of `model` lie column by column: MKL then reads them at 15 to 19 GB/s instead of 10 when it
    multiplies them by one token's numbers, and as fast as before by those of many.

    For float32 on a CPU alone. `report(1.0)` is called between two matrices; what it raises gives it up.
    """
    if not torch.backends.mkl.is_available():
        return
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear) or not _gains(module.weight):
            continue
        report(1.0)
        with torch.no_grad():
            module.weight.data = module.weight.data.t().contiguous().t()


def _gains(weight: torch.Tensor) -> bool:
    rows, columns = weight.shape
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and rows >= _TALL * columns
        and weight.is_contiguous()
    )
