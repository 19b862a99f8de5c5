"""Owns what a request says of how a model is loaded.

It does not know torch or requests.
"""

from dataclasses import dataclass
from typing import Final

DTYPES: Final = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """`threads` 0 leaves their number to the cartridge; `use_gpu` takes a GPU where one can be used; `dtype` is one of
    DTYPES."""

    threads: int = 0
    use_gpu: bool = True
    dtype: str = "auto"
    context_size: int = 0
    """How many tokens a language model sees; 0 takes what it was made for."""
