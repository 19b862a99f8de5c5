# pyright: basic
# Of torch's names many have no types.
"""Owns the process group of torch that the ranks of one model make: joined, left, and what the leader tells at a step.

It does not know models. The ranks of a CPU talk by gloo over the loopback interface, those of GPUs by NCCL; they meet
at a file, so that nothing outside of this machine is asked or can ask.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.parallel.loopback import LOOPBACK
from cartdeck_torch.parallel.work import RankWork

_LOOK_S = 0.02


class Step(IntEnum):
    """What the ranks do next."""

    END = 0
    """The text is over."""
    TAKE = 1
    """An empty cache for `value` tokens."""
    COPY = 2
    """Another cache with the same tokens as the first."""
    TOKEN = 3
    """The token `value`, with the cache `cache`."""
    TOKENS = 4
    """`value` tokens, which follow, with the cache `cache`."""
    SEE = 5
    """Images, in `value` bytes of a `SeenText`, which follow: they belong to the next tokens."""


def join_group(device: torch.device, work: RankWork, *, look: Callable[[], None] | None = None) -> None:
    """Makes this process a rank of the group that meets at the file `work.store`.

    The leader's `look()` is called while it waits for the others to come, and raises to give up: torch itself would see
    only behind its time that one does not. Raises `TIMED_OUT`, and torch's errors when one is lost at the very moment.
    """
    leave_group()  # an earlier model's
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    # what NCCL's own watch finds ends the group, and not this process with it: its leader has a request to answer
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    is_gpu = device.type == "cuda"
    store = dist.FileStore(work.store, work.ranks)  # pyright: ignore[reportPrivateImportUsage] - its documented place
    store.set(f"here/{work.rank}", "1")
    if look is not None:
        _wait_for_all(store, work, look)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=store,
        rank=work.rank,
        world_size=work.ranks,
        timeout=timedelta(seconds=work.timeout_s),
        device_id=device if is_gpu else None,
    )


def _wait_for_all(store: Any, work: RankWork, look: Callable[[], None]) -> None:
    end_s = time.monotonic() + work.timeout_s
    while not store.check([f"here/{rank}" for rank in range(work.ranks)]):
        look()
        if time.monotonic() > end_s:
            message = f"not all of {work.ranks} ranks came in {work.timeout_s:.0f} s"
            raise failure(Code.TIMED_OUT, message, phase="load")
        time.sleep(_LOOK_S)


def leave_group() -> None:
    """Whether the others are there or not."""
    with suppress(RuntimeError, AssertionError, ValueError):  # what another thread left meanwhile
        if not dist.is_initialized():
            return
        if dist.get_backend() == "nccl":
            abort_group()  # to destroy it would wait for those that are gone
        else:
            dist.destroy_process_group()


def abort_group() -> None:
    """Ends what waits for the others on a GPU. On a CPU nothing needs it: who waits there is told by the closed socket.
    May be called by another thread."""
    with suppress(RuntimeError, AssertionError, ValueError):  # what another thread left meanwhile
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()


def tell(step: Step, *, device: torch.device, value: int = 0, cache: int = 0) -> None:
    """The leader's side of `hear`."""
    dist.broadcast(torch.tensor([int(step), value, cache], device=device), 0)


def hear(device: torch.device) -> tuple[Step, int, int]:
    """What the leader tells next, its value, and a cache's number."""
    told = torch.zeros(3, dtype=torch.int64, device=device)
    dist.broadcast(told, 0)
    step, value, cache = told.tolist()
    return Step(step), value, cache


def share_tokens(ids: list[int] | None, count: int, *, device: torch.device) -> list[int]:
    """The leader's `ids`, on every rank; the others give None."""
    made = torch.zeros(count, dtype=torch.int64) if ids is None else torch.tensor(ids)
    made = made.to(device)
    dist.broadcast(made, 0)
    return made.tolist() if ids is None else ids


def share_bytes(data: bytes | None, count: int, *, device: torch.device) -> bytes:
    """The leader's `data`, on every rank; the others give None."""
    made = (
        torch.zeros(count, dtype=torch.uint8) if data is None else torch.frombuffer(bytearray(data), dtype=torch.uint8)
    )
    made = made.to(device)
    dist.broadcast(made, 0)
    return made.cpu().numpy().tobytes() if data is None else data


def add_up(part: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' parts, in place."""
    dist.all_reduce(part)
    return part


def put_together(part: torch.Tensor) -> torch.Tensor:
    """All ranks' parts side by side in the last dimension, in their order."""
    part = part.contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, dim=-1)
