"""Owns the numbers that a header gives for its architecture: one for the model, or one for each of its layers.

It does not know what they are for. A number that cannot be counts as 0; nobody's header makes a list of any length.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck_modelkit.gguf.header import ArrayValue, Header, Value

MOST_LAYERS: Final = 1024
"""More than any model has; a header may say four thousand million."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The numbers under `<prefix>.<name>` of a header: of its architecture, where no prefix is given."""

    header: Header
    prefix: str = ""

    @property
    def layers(self) -> int:
        """How many layers the model's text goes through: those that only predict further tokens are left out."""
        return min(self.number("block_count"), MOST_LAYERS) - min(self.number("nextn_predict_layers"), MOST_LAYERS)

    def has(self, name: str) -> bool:
        """Whether the header says anything under this name."""
        return self._value(name) is not None

    def number(self, name: str, default: int = 0) -> int:
        """The whole number under `name`; of a list of numbers, one for each layer, the largest; never below 0."""
        value = self._value(name)
        if isinstance(value, ArrayValue):
            value = max(_integers(value), default=default)
        return max(0, value) if isinstance(value, int) else default

    def of_layers(self, name: str, default: int = 0) -> list[int]:
        """The number under `name` for each layer; for all of them where the header gives one number."""
        value, layers = self._value(name), max(0, self.layers)
        if not isinstance(value, ArrayValue):
            return [self.number(name, default)] * layers
        given = _integers(value)[:layers]
        return given + [default] * (layers - len(given))

    def _value(self, name: str) -> Value | None:
        return self.header.metadata.get(f"{self.prefix or self.header.architecture}.{name}")


def _integers(array: ArrayValue) -> list[int]:
    return [max(0, value) if isinstance(value, int) else 0 for value in array.values or ()]
