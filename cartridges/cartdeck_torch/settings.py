"""Owns what a request says of how a model is loaded.

It does not know torch or requests.
"""

import re
from dataclasses import dataclass
from typing import Final

from cartdeck_protocol.errors import Code, failure

DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
KV_CACHES: Final = ("dynamic", "static")
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """`threads` 0 leaves their number to the cartridge; `device` is auto, cpu, cuda or cuda:N; `dtype` one of DTYPES,
    `kv_cache` one of KV_CACHES."""

    threads: int = 0
    device: str = "auto"
    dtype: str = "auto"
    kv_cache: str = "dynamic"
    context_size: int = 0
    """How many tokens a language model sees; 0 takes what it was made for."""
    tensor_parallel: int = 1
    """Over how many processes a language model is divided."""

    def own_threads(self, machine: int) -> int:
        """How many threads each process computes with, of those asked for, or of the `machine`'s."""
        return max(1, (self.threads or machine) // self.tensor_parallel)


def choose_device(device: str, gpu_layers: int) -> str:
    """The device that the arguments `device` and `gpu-layers` name together: `gpu-layers` 0 keeps a model on the CPU.

    Raises `BAD_ARGUMENT` for a name that is none, and where the two contradict each other.
    """
    if not _DEVICE.fullmatch(device):
        raise failure(
            Code.BAD_ARGUMENT, f"device: found {device!r:.80}, expected auto, cpu, cuda or cuda:1", argument="device"
        )
    if gpu_layers == 0 and device.startswith("cuda"):
        message = f"gpu-layers 0 keeps the model on the CPU, and device is {device}; expected one of them"
        raise failure(Code.BAD_ARGUMENT, message, argument="device")
    return "cpu" if gpu_layers == 0 else device
