# pyright: basic
# Of torch's names many have no types.
"""Owns the device as torch sees it: which one, its memory, its cache; and the import of the libraries.

It does not know models.
"""

import gc
import os
from contextlib import suppress
from typing import Any

os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.device import DeviceMemory

VERSION = f"torch {torch.__version__}, transformers {transformers.__version__}"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float32"}
_HALF_ON_CPU = "float16 has no fast kernels on a CPU: float32 is used"

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_grad_enabled(False)


def settle() -> None:
    """For a process of its own: the collector holds the interpreter for 0.2 s when it walks what these libraries made,
    which lives as long as the process; from now on it leaves that out."""
    gc.collect()
    gc.freeze()


class TorchDevice:
    """A device that is bound to the thread which made it."""

    def __init__(self, device: torch.device, *, threads: int, notice: str | None = None) -> None:
        self.device = device
        self.notice = notice
        self.threads = threads
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)  # the setting belongs to the thread
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device).add_(1)  # makes the context now, on this thread, and runs something in it
            torch.cuda.synchronize()

    @property
    def name(self) -> str:
        return str(self.device)

    def memory(self) -> DeviceMemory:
        if self.device.type != "cuda":
            return DeviceMemory()
        return DeviceMemory(*torch.cuda.mem_get_info(self.device))

    def release_cached(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def open_device(name: str = "auto", *, threads: int) -> TorchDevice:
    """The device of that name: cpu, cuda (the first GPU) or cuda:N; auto takes the first GPU that can be used, else the
    CPU, and the device's notice says why.

    Raises `UNSUPPORTED` for a GPU that is named and not there.
    """
    if name == "cpu":
        return TorchDevice(torch.device("cpu"), threads=threads)
    count = _gpus()
    place = int(name.partition(":")[2] or 0)
    why = "torch finds none" if torch.backends.cuda.is_built() else "this torch is built for the CPU"
    for index in range(count) if name == "auto" else [place] if place < count else []:
        try:
            return TorchDevice(torch.device(f"cuda:{index}"), threads=threads)
        except Exception as error:  # whatever the driver has to say: it is too old, or another process has it alone
            why = f"cuda:{index}: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}"
    if name != "auto":
        there = ", ".join(["cpu", *(f"cuda:{index}" for index in range(count))])
        found = why if place < count or not count else there
        message = f"there is no device {name} here that can be used ({found}); leave device out, or take cpu"
        raise failure(Code.UNSUPPORTED, message, argument="device", phase="load")
    return TorchDevice(torch.device("cpu"), threads=threads, notice=f"no GPU can be used here ({why})")


def _gpus() -> int:
    return torch.cuda.device_count() if torch.backends.cuda.is_built() and torch.cuda.is_available() else 0


def choose_dtype(wanted: str, stored: str, device: TorchDevice) -> tuple[torch.dtype, str | None]:
    """The type to compute in, and what is to be said of it.

    `wanted` is auto, float32, bfloat16 or float16; auto takes the type that the weights are `stored` in (as safetensors
    names it). A CPU computes float16 as float32. Raises `UNSUPPORTED` for stored types that are quantized.
    """
    if wanted == "auto" and stored not in _STORED:
        raise failure(
            Code.UNSUPPORTED,
            f"the weights are stored as {stored}; this cartridge computes in float32, bfloat16 or float16",
            argument="model",
        )
    name = _STORED[stored] if wanted == "auto" else wanted
    if name == "float16" and device.device.type == "cpu":
        return torch.float32, _HALF_ON_CPU
    return _DTYPES[name], None


def describe_devices() -> list[dict[str, Any]]:
    """Each device that can be used, the CPU first."""
    found: list[dict[str, Any]] = [{"name": "cpu", "title": "CPU", "memory_free_bytes": 0, "memory_total_bytes": 0}]
    found[0]["dtypes"] = ["float32", "bfloat16"]
    for index in range(_gpus()):
        with suppress(RuntimeError, AssertionError), torch.cuda.device(index):  # one that cannot be asked is left out
            free, total = torch.cuda.mem_get_info(index)
            found.append(
                {
                    "name": f"cuda:{index}",
                    "title": torch.cuda.get_device_name(index),
                    "memory_free_bytes": free,
                    "memory_total_bytes": total,
                    "dtypes": ["float32", "float16", *(["bfloat16"] if torch.cuda.is_bf16_supported() else [])],
                }
            )
    return found
