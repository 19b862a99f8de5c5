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


def lay_out(model: Any, *, is_mapped: bool, report: Callable[[float], None]) -> None:
    """Has tall matrices of `model` lie column by column: MKL then reads them at 15 to 19 GB/s instead of 10 when it
    multiplies them by one token's numbers, and as fast as before by those of many.

    For float32 on a CPU alone. `is_mapped`: the weights are pages of their files. Then the others are copied too: the
    files are let go only as a whole, and until then the pages of what was copied count as this process's memory.
    `report(1.0)` is called between two matrices; what it raises gives it up.
    """
    if not torch.backends.mkl.is_available():
        return
    tall = [one.weight for one in model.modules() if isinstance(one, torch.nn.Linear) and _gains(one.weight)]
    for weight in tall:
        report(1.0)
        weight.data = weight.data.t().contiguous().t()
    if not tall or not is_mapped:
        return
    for weight in (*model.parameters(), *model.buffers()):
        if weight.is_contiguous():
            report(1.0)
            weight.data = weight.data.clone()


def _gains(weight: torch.Tensor) -> bool:
    rows, columns = weight.shape
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and rows >= _TALL * columns
        and weight.is_contiguous()
    )
