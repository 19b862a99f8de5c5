"""Owns what a device is to its worker, and what an error that it raised means for it.

It does not know torch: errors are told apart by the names of their classes and by their words, so that a device double
can raise them too.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the device's own memory; both 0 for the CPU, whose memory is the machine's."""

    free_bytes: int = 0
    total_bytes: int = 0


class Device(Protocol):
    """A device that is bound to the worker's thread."""

    @property
    def name(self) -> str:
        """As torch spells it: `cpu`, `cuda:0`."""
        ...

    @property
    def notice(self) -> str | None:
        """Why it is not the one that was asked for."""
        ...

    def memory(self) -> DeviceMemory: ...

    def release_cached(self) -> None:
        """Gives blocks that nothing uses back to the device, so that its free memory is told truly."""
        ...


class Meaning(Enum):
    """What an error says of the device that raised it."""

    OUT_OF_MEMORY = "out of memory"
    """Memory ran out; the device goes on."""
    POISON = "poison"
    """The device's context is lost: in this process nothing on it works any more."""
    ORDINARY = "ordinary"
    """The job is at fault, not the device."""


_MEMORY_CLASSES: Final = frozenset({"OutOfMemoryError", "MemoryError"})
_POISON_CLASSES: Final = frozenset({"AcceleratorError", "DistBackendError"})
_MEMORY_WORDS: Final = re.compile(
    r"CUDA (?:error: )?out of memory|ALLOC(?:ATION)?_FAILED|DefaultCPUAllocator: (?:can't|not enough) .*memory",
    re.IGNORECASE,
)
_POISON_WORDS: Final = re.compile(
    r"CUDA error|device-side assert|illegal memory access|unspecified launch failure|launch failed|"
    r"CUBLAS_STATUS|CUSOLVER_STATUS|CUSPARSE_STATUS|CUFFT_|CUDNN_STATUS|NCCL (?:error|failure)|"
    r"ncclUnhandled|ncclSystem|ncclInternal|ncclInvalidUsage|hardware error|ECC error"
)
_WANTED: Final = re.compile(r"[Tt]ri(?:ed|ing) to allocate ([\d.]+) ?(bytes|[KMGT]iB|[KMGT]B)?")
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS_OF_TEN: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def meaning_of(error: BaseException) -> Meaning:
    """What `error`, raised by a job, says of the device.

    Memory comes first: a failed allocation of cuBLAS, cuDNN or CUDA's own (an AcceleratorError) and torch's
    OutOfMemoryError name CUDA too, and leave the context whole.
    """
    classes = {kind.__name__ for kind in type(error).__mro__}
    words = str(error)
    if classes & _MEMORY_CLASSES:
        return Meaning.OUT_OF_MEMORY
    if not classes & {"RuntimeError", *_POISON_CLASSES}:
        return Meaning.ORDINARY
    if _MEMORY_WORDS.search(words):
        return Meaning.OUT_OF_MEMORY
    return Meaning.POISON if classes & _POISON_CLASSES or _POISON_WORDS.search(words) else Meaning.ORDINARY


def needed_bytes(error: BaseException) -> int | None:
    """How much an allocation that failed had asked for, where the error says it."""
    found = _WANTED.search(str(error))
    if found is None:
        return None
    return int(float(found[1].rstrip(".")) * {**_UNITS, **_UNITS_OF_TEN}.get(found[2] or "bytes", 1))
