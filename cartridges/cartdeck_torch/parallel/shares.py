"""Owns whether a model can be divided among so many ranks: its counts by its configuration, the devices there are.

It does not know weights: it is asked before any are read.
"""

from collections.abc import Mapping
from typing import Any, Final

from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.family import CAUSAL, SEEING
from cartdeck_torch.folder import ModelFolder

ARGUMENT: Final = "tensor-parallel"
MOST_RANKS: Final = 64
_COUNTS: Final = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "intermediate_size": "values between the layers of its MLP",
    "moe_intermediate_size": "values between the layers of an expert",
    "shared_expert_intermediate_size": "values between the layers of its shared expert",
}


def check_shares(folder: ModelFolder, ranks: int) -> None:
    """Raises `UNSUPPORTED` for a kind of model that is not divided, and `BAD_ARGUMENT`, with the counts and the numbers
    of ranks that there may be, for one whose heads do not divide by `ranks`."""
    if folder.model_type not in (*CAUSAL, *SEEING):
        known = ", ".join((*CAUSAL, *SEEING))
        message = f"{folder.name} is a model of the kind {folder.model_type}; ranks share models of the kinds {known}"
        raise failure(Code.UNSUPPORTED, message, argument=ARGUMENT, details={"architecture": folder.model_type})
    counts = _counts(folder.text_config())
    if all(count % ranks == 0 for count in counts.values()):
        return
    allowed = [n for n in range(1, min(MOST_RANKS, *counts.values()) + 1) if not any(c % n for c in counts.values())]
    odd = " and ".join(f"{count:,} {_COUNTS[name]}" for name, count in counts.items() if count % ranks)
    raise failure(
        Code.BAD_ARGUMENT,
        f"{folder.name} has {odd}, which do not divide by {ranks} ranks; expected one of {_listed(allowed)}",
        argument=ARGUMENT,
        details={"ranks": ranks, "counts": counts, "allowed": allowed},
    )


def check_devices(name: str, *, ranks: int, devices: int) -> None:
    """Raises `BAD_ARGUMENT` where the device `name` is a GPU and there are fewer of them than ranks, each of which
    needs one of its own. On a CPU there may be any number."""
    if name.startswith("cuda") and ranks > devices:
        raise _too_many(ranks, devices)


def device_of(rank: int, leader: str) -> str:
    """Where a rank computes: on the CPU as the leader, or on a GPU that no other rank has."""
    kind, _, place = leader.partition(":")
    if kind == "cpu":
        return kind
    own = int(place or 0)
    if rank == 0:
        return f"{kind}:{own}"
    return f"{kind}:{rank - 1 if rank <= own else rank}"


def _counts(text: Mapping[str, Any]) -> dict[str, int]:
    found = {name: text.get(name) for name in _COUNTS}
    if found["num_key_value_heads"] is None:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return {name: count for name, count in found.items() if type(count) is int and count > 0}


def _too_many(ranks: int, devices: int) -> CartdeckError:
    return failure(
        Code.BAD_ARGUMENT,
        f"{ranks} ranks need {ranks} GPUs, and {devices} can be used here; expected at most {devices}, or device cpu",
        argument=ARGUMENT,
        details={"ranks": ranks, "devices": devices},
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
