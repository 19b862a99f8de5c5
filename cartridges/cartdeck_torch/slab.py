"""Owns the models of a device under opaque handles: a handle outlives its model and then says so.

It does not know models or threads; its worker alone touches it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cartdeck_protocol.errors import Code, failure


@dataclass(frozen=True, slots=True)
class Handle:
    """Names a model in a slab. Means nothing outside of it."""

    slot: int
    generation: int
    label: str

    def __str__(self) -> str:
        return f"{self.label} (slot {self.slot}, generation {self.generation})"


class Slab:
    """Slots that are used again, each time under a new generation."""

    def __init__(self) -> None:
        self._generations: list[int] = []
        self._models: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._models.values()))

    def put(self, model: Any, label: str) -> Handle:
        """Keeps `model`; `label` is what messages call it."""
        slot = next((one for one in range(len(self._generations)) if one not in self._models), len(self._generations))
        if slot == len(self._generations):
            self._generations.append(0)
        self._generations[slot] += 1
        self._models[slot] = model
        return Handle(slot, self._generations[slot], label)

    def get(self, handle: Handle) -> Any:
        """The model. INTERNAL, naming the handle, for one that was dropped."""
        self._check(handle)
        return self._models[handle.slot]

    def drop(self, handle: Handle) -> None:
        """Forgets the model. INTERNAL, naming the handle, for one that was dropped before."""
        self._check(handle)
        del self._models[handle.slot]

    def drop_all(self) -> None:
        """Forgets every model; their handles are stale from now on."""
        self._models.clear()

    def _check(self, handle: Handle) -> None:
        known = handle.slot < len(self._generations) and self._generations[handle.slot] == handle.generation
        if not known or handle.slot not in self._models:
            raise failure(
                Code.INTERNAL,
                f"the handle of {handle} is stale: its model was dropped",
                details={"handle": str(handle)},
            )
