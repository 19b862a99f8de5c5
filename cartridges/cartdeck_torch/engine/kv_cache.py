# pyright: basic
# Of transformers' names many have no types.
"""Owns where a language model keeps what it knows of the tokens so far: caches that grow, or one made whole and kept.

It does not know texts.
"""

import copy
from typing import Any

from transformers import DynamicCache, StaticCache

_STEP_TOKENS = 64


class KvCaches:
    """The caches of one model. One text is computed at a time, so one static cache is enough."""

    def __init__(self, config: Any, *, kind: str) -> None:
        """`kind` is dynamic or static."""
        self._config = config
        self._is_static = kind == "static"
        self._kept: StaticCache | None = None
        self._kept_tokens = 0

    @property
    def kept_tokens(self) -> int:
        """How many tokens the cache that is kept has room for; 0 where none is kept."""
        return self._kept_tokens

    def take(self, tokens: int) -> Any:
        """An empty cache for a text of at most so many tokens, its prompt included.

        A static one is used again where it has room and no more than twice what is needed: attention looks at all of
        its places.
        """
        if not self._is_static:
            return DynamicCache(config=self._config)
        needed = -(-tokens // _STEP_TOKENS) * _STEP_TOKENS
        if self._kept is not None and needed <= self._kept_tokens <= 2 * needed:
            self._kept.reset()
        else:
            self.clear()  # before the new one is made: the two would not fit at once
            self._kept, self._kept_tokens = StaticCache(config=self._config, max_cache_len=needed), needed
        return self._kept

    def copy(self, cache: Any) -> Any:
        """Another cache with the same tokens, for another text of the same prompt."""
        return copy.deepcopy(cache)

    def clear(self) -> None:
        """Forgets what is kept."""
        self._kept, self._kept_tokens = None, 0
