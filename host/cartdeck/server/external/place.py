"""Owns what is known of a model on another server: its address, its name there, the variable that has the key.

It does not know how it is asked.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is that another server answers for. `model` is its name there, `name` the one here."""

    name: str
    url: str
    model: str
    key_variable: str | None = None

    def __str__(self) -> str:
        return f"The server {self.url}, which answers for {self.name},"

    def hidden(self, text: str) -> str:
        """`text` without the key, should that server have repeated it."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable is not None else ""
        return text.replace(key, "…") if key else text
