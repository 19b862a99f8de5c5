"""Owns the choice among a model's profiles for one machine, and the fingerprint of what was chosen.

It does not know how a machine is looked at: it is told.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.catalog.catalog import Named
from cartdeck.catalog.entry import Entry, Origin, Profile

_FINGERPRINT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has for models."""

    memory_bytes: int
    """0 is not known."""
    cuda_bytes: tuple[int, ...] = ()
    """The memory of each CUDA device."""

    def lacks(self, profile: Profile) -> str | None:
        """Why a profile does not fit; None where it does."""
        if profile.device == "cuda":
            ranks = profile.tensor_parallel or 1
            if len(self.cuda_bytes) < ranks:
                return f"it needs {ranks} CUDA devices, there are {len(self.cuda_bytes)}"
            have = sum(sorted(self.cuda_bytes, reverse=True)[:ranks])
        else:
            have = self.memory_bytes or profile.memory_bytes
        if profile.memory_bytes > have:
            return f"it needs {profile.memory_bytes} bytes of memory, there are {have}"
        return None


def ranked(entry: Entry, machine: Machine) -> list[Profile]:
    """The profiles that fit, best first: the highest priority, then a CUDA device, then the order of the file."""
    fitting = [profile for profile in entry.profiles if machine.lacks(profile) is None]
    return sorted(fitting, key=lambda profile: (-profile.priority, profile.device != "cuda"))


def arguments_of(named: Named, profile: Profile | None) -> dict[str, Any]:
    """The arguments of a call that a model, its adapter and a profile stand for, without the model's spec."""
    entry = named.entry
    arguments = dict(entry.arguments)
    if entry.context_size is not None:
        arguments["context-size"] = entry.context_size
    if entry.max_tokens is not None and "max-tokens" not in arguments:
        arguments["max-tokens"] = entry.max_tokens
    if entry.projector is not None:
        arguments["projector"] = entry.projector
    if named.adapter is not None:
        arguments["lora"] = [{"model": named.adapter.source, "scale": named.adapter.scale}]
    return arguments | ({} if profile is None else profile.arguments())


def _plain(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else origin.model_dump()


def fingerprint(named: Named, profile: Profile | None) -> str:
    """A text that is another whenever an instance would be: of the source, its origin, and what it is loaded with."""
    entry = named.entry
    whole = {
        "source": entry.source,
        "origin": _plain(entry.origin),
        "projector_origin": _plain(entry.projector_origin),
        "adapter_origin": None if named.adapter is None else _plain(named.adapter.origin),
        "backend": entry.backend,
        "external": None if entry.external is None else entry.external.model_dump(),
        "arguments": arguments_of(named, profile),
        "device": None if profile is None else profile.device,
    }
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]
